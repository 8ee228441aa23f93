"""What environments share: episodes, single and batched environments, pictures.

Front door: `episodes.Episodes`.
"""

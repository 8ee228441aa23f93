"""The documents: what they hold, their checks, the shipped YAML files.

Front door: `library.load`: any document by path or by shipped name. `errors` is the family of
errors that a user can cause. Nothing here computes: seconds and bytes are made in
`heterps_envs`.
"""

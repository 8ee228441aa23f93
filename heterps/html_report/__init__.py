"""A plan, a run or a comparison as one HTML page that needs no network.

Front door: `page.write_report`. What would help is computed (`reasons`, `improvements`); the rest
only shows. Names out of documents are escaped by `markup`.
"""

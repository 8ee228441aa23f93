"""A comparison of planners on the terminal and as a folder: tables, plans, figures.

Front doors: `tables.print_comparison`, `folder.write_folder`.
"""

"""Options of the commands, and nothing else.

Front door: `app.main`, the `heterps` command. What a command does is in `heterps.commands`.
"""

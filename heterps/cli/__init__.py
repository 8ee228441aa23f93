"""Options of the commands, and nothing else.

Front door: `app.main`. What a command does is in `heterps.commands`.
"""

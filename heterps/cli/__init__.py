"""Options of the commands; `app.main` is the `heterps` command."""

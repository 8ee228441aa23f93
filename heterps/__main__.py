"""`python -m heterps` is the `heterps` command."""

from heterps.cli.app import main

if __name__ == "__main__":
    main()

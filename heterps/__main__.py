"""`python -m heterps` is the `heterps` command."""

from heterps.cli import main

if __name__ == "__main__":
    main()

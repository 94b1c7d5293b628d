"""`python -m taskmanager` is the command line."""

from taskmanager.cli.commands import main

if __name__ == "__main__":
    main()

"""The command line: one module per group of commands, put together in `commands.py`."""

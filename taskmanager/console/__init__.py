"""Describes one database in frozen values, which `terminal/` draws and `--json` prints."""

"""The only code near a disk: one narrow protocol, kept by SQLite in a file and in memory."""

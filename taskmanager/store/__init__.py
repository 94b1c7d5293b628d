"""The only code near a disk: one narrow protocol, kept by a SQLite store and a memory store."""

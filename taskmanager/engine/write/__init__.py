"""Writes what has changed, and reads the answers of the store."""

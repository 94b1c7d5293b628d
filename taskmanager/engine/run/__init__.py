"""Runs one attempt in its lane, and settles what became of it."""

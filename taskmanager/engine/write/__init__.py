"""Writes what has changed, reads the answers of the store, and tells the listeners of the application."""

"""Tells the listeners of the application what happens to tasks: each event once, and in order."""

"""Runs the steps of a task, lets it sleep and wait, and records all of that."""

"""Draws the overview, one task, and tables on a terminal. This is the only part of the console that needs rich."""

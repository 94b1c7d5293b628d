"""Draws what there is to see on a terminal, with rich."""

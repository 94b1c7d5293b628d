"""Looks at the store: claims what is free, shares with others, and hears what they have written."""

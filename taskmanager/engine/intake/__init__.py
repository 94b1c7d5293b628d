"""The way in, from any thread: keys, the inbox, and the door."""

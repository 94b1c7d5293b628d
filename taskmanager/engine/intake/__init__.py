"""Takes calls in, from any thread: checks them, finds their keys, and lets the loop accept their tasks."""

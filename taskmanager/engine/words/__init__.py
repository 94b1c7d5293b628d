"""What the engine speaks of: a task in memory and its phases, its function, an attempt and its outcome, who waits."""

"""What all rooms speak of: tasks in memory, functions, attempts, outcomes, settings, loops, timers, waiters."""

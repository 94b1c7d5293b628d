"""What a task records of its steps, sleeps and waits."""

"""What is done again and again beside the tasks: each duty has a `run_once` and a loop."""

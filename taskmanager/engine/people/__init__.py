"""Does what people ask of tasks, queues and workflows: looks for them, waits for them, acts on them."""

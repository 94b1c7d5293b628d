"""Runs user code and settles what became of it: memory on one side, the store's promise on the other.

The modules by what they are about. Each knows only modules that stand before it.

    Time, and loops:        due_time stall wall_clock interrupts loops
    The words:              definition row_codec saving live_task attempt context log_fields instance settings schedule
    What starts next:       shared_limit queue_state dispatch memory_window alarm
    What an attempt is:     mistakes copies outcome
    Children:               child child_reports child_program child_link
    What runs:              lanes settle execution lane_faults
    Who is told:            events follow waiting
    What is written:        lean_writes outbox flushes writer progress paring
    The way in:             idempotency reruns inbox intake
    One start of it all:    engine
    What becomes of writes: after_write
    The store, and others:  neighbours fairness claiming polling
    What people ask for:    stored_tasks records queues report joiner
    From start to stop:     file_watch takeover leftover releasing unstopped lifecycle

What stands before `engine` does not know it, and tells it what has happened by calling what it was given: the runner
reports outcomes, the writer what became of its writes (`WriterListener`, which is `after_write`), the turn and the
alarm that it is time. What stands behind acts on an engine, and is put together in `lifecycle`.

docs/architecture.md tells the life of a task through these modules.
"""

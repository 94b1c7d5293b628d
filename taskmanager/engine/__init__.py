"""One start of a manager: takes tasks in, runs them, settles what became of them, and writes it.

The rooms, and the modules in each. A module knows only modules that stand before it.

    words/:     loops definition phases live_task instance settings outcome attempt timers waiters
    choose/:    queue_state dispatch memory_window
    run/:       child child_program child_link lanes calls settle execution
    write/:     writes history outbox commits writer
    tell/:      events ears listeners
    steps/:     lanes records waits calls
    intake/:    keys inbox intake
    engine/:    life free_rows engine after_write
    people/:    records queues actions workflows
    look/:      sharing claiming database_watch polling

The first line of each room says what it is for. The four modules of `engine/` itself make one engine of the parts that
stand before them: `life` leads a task from part to part, `free_rows` sees to rows that any instance may claim, `engine`
makes the parts, and `after_write` acts on the answers of the store.

A part does not know these four. It tells what has happened through callables that it was given: the runner reports
outcomes, the writer reports what became of its writes (to a `WriterListener`, which is `AfterWrite`), the inbox and the
alarm report that it is time. The modules after these four are given an engine, and act on it. `taskmanager.lifecycle`
makes all of them and the duties, and starts and stops them.

docs/architecture.md tells the life of a task through these modules.
"""

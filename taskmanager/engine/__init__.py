"""Runs user code and settles what became of it: memory on one side, the store's promise on the other.

The modules by what they are about. Each knows only modules that stand before it.

    The words:              loops definition phases live_task views instance settings
    Time:                   timers
    What an attempt is:     outcome attempt
    Who is told:            waiters
    What starts next:       queue_state dispatch room
    Children:               child child_program child_link
    What runs:              time_limits lanes child_call middleware nodes settle execution
    What is written:        writes history outbox answers late_ends
    Who hears:              events untold listeners
    What writes it:         writer
    What a task records:    step_lanes step_records step_waits steps
    The way in:             keys inbox intake
    One start of it all:    life free_rows engine
    What becomes of writes: after_write
    What people ask for:    records actions workflows
    The store, and others:  sharing claiming write_watch database_watch polling

Modules before `engine` do not know it. They tell it what has happened through the callables that they were given: the
runner reports outcomes, the writer reports what became of its writes (to `WriterListener`, which is `after_write`), the
inbox and the alarm report that it is time. Modules behind it act on an engine.
`taskmanager.lifecycle` puts them together with the duties, and starts and stops it all.

docs/architecture.md tells the life of a task through these modules.
"""

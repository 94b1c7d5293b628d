"""Runs user code and settles what became of it: memory on one side, the store's promise on the other.

The rooms, and the modules in each. A module knows only modules that stand before it.

    words/:     loops definition phases live_task views instance settings timers outcome attempt waiters
    choose/:    queue_state dispatch room
    run/:       child child_program child_link time_limits lanes child_call middleware nodes settle execution
    write/:     writes history outbox answers late_ends events untold listeners writer
    steps/:     lanes records waits calls
    intake/:    keys inbox intake
    engine/:    life free_rows engine after_write
    people/:    records actions workflows
    look/:      sharing claiming write_watch database_watch polling

What each room is for stands in its own first line. The four modules of `engine/` itself are one start of all that is
before them. What stands before them does not know them. It tells what has happened through the callables that it was
given: the runner reports outcomes, the writer reports what became of its writes (to `WriterListener`, which is
`after_write`), the inbox and the alarm report that it is time. What stands behind them acts on an engine.
`taskmanager.lifecycle` puts them together with the duties, and starts and stops it all.

docs/architecture.md tells the life of a task through these modules.
"""

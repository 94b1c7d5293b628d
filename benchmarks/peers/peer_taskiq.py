"""taskiq with its broker in memory, which runs the tasks in this process."""

from benchmarks.peers.interface import CONCURRENCY, NOTHING, Contender, Peer, no_op


class Taskiq(Peer):
    """An InMemoryBroker."""

    async def start(self) -> None:
        from taskiq import InMemoryBroker

        self.broker = InMemoryBroker(max_async_tasks=CONCURRENCY)
        self.task = self.broker.register_task(no_op, task_name="no_op")
        await self.broker.startup()

    async def put(self, number: int) -> None:
        await self.task.kiq(number)

    async def settled(self, count: int) -> None:
        await self.broker.wait_all()

    async def stop(self) -> None:
        await self.broker.shutdown()


CONTENDERS = (
    Contender(
        name="taskiq",
        environment="taskiq",
        make=Taskiq,
        promise=NOTHING,
        note=f"`InMemoryBroker(max_async_tasks={CONCURRENCY})`. It keeps the last 100 results.",
        against="taskmanager, no file",
    ),
)

"""What a store says of its database besides the rows: is it whole, have others written, who lives beside us?"""

import enum
from collections.abc import Collection
from typing import Protocol

from taskmanager.store.presence import Presence


class Whereabouts(enum.Enum):
    """What has become of the database that is open."""

    WHOLE = "whole"
    DAMAGED = "damaged"
    """What was committed is all there, but others might not find it: `mend` puts that right."""
    LOST = "lost"
    """It is not there any more, or another one is in its place: what was committed may be gone. Close the store, open
    it, and write again what memory knows. Until it is closed, the lost one may still be read.
    """
    EMPTIED = "emptied"
    """The same, and of the lost one nothing will be read any more."""
    MOVED = "moved"
    """Another one has taken its place, which may lack what was committed last. Close the store, open it, compare what
    memory knows with what is there, and write again what is missing.
    """

    @property
    def is_lost(self) -> bool:
        """Whether memory may be all that is left of what was committed."""
        return self in (Whereabouts.LOST, Whereabouts.EMPTIED, Whereabouts.MOVED)


class WatchedStore(Protocol):
    """The verbs that look after the database. `Store` has these too."""

    def presence(self, instance_id: str) -> Presence | None:
        """Return what proves that this instance lives, not taken yet; None where nobody else can be there.

        It is made before `open`, and serves whatever `open` and `close` do in between.
        """
        ...

    @property
    def clock_offset_us(self) -> int:
        """How far the clock of the database is ahead of that of this machine; 0 where both are the same.

        Known once the store is open. It may be measured again, and change a little, at any time.
        """
        ...

    async def changes(self) -> int:
        """Return a number that differs after others have committed; own commits do not change it.

        What they have committed before the call is read by whatever is asked after it. A store that cannot tell may
        return another number when nobody has written: that costs the caller a whole look.
        """
        ...

    def news_mark(self) -> object:
        """Return what differs with the number of `changes` unless others have only written tasks: then `Store.news`
        are those of before. None where nobody can tell. To be asked after `changes`.
        """
        ...

    def mark(self) -> object:
        """Return what differs soon after anybody has written, this store too; None where nobody can tell.

        It costs next to nothing and asks nothing of the database, so that it may be compared many times a second. A
        write may show here before its commit counts.
        """
        ...

    def watch(self) -> int | None:
        """Return a descriptor that can be read after the next write of others; None where there is none.

        It is the same one until the store is closed. Each call takes in what could be read of it.
        """
        ...

    @property
    def is_told(self) -> bool:
        """Whether the descriptor of `watch` can be read after a commit of others, and after nothing else.

        Then a watch costs nothing, and what can be read then counts already.
        """
        ...

    async def look_after(self) -> Whereabouts:
        """Say what has become of the database. Never opens it. `StoreUnavailable` where nothing is known of it now.

        Asked twice a second, and before a stop writes what is left. Of a store that is closed too.
        """
        ...

    def recent_ids(self) -> Collection[str]:
        """Return tasks whose writes were acknowledged lately; none where what was acknowledged cannot be lost."""
        ...

    def describe(self, found: Whereabouts) -> str:
        """Return for people what has happened to the database, which is named, when it is not whole."""
        ...

    async def mend(self) -> None:
        """Put right what `DAMAGED` means, keeping all that was committed. `StoreUnavailable` if not possible now.

        Nothing else is asked of the store meanwhile. If it fails half-way, the store may be closed; it is called again.
        """
        ...

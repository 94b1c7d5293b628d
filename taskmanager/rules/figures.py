"""Counts durations in buckets, of which each reaches four times as far as the one before it. Whole numbers only.

Sixteen counts say where a percentile is, to within a factor of four. They stand in one row of a table, and can be added
up over any time. A list of durations would be exact, and would grow with the number of tasks.

The first bucket reaches to 1.024 ms, so the number of bits of a duration in microseconds tells its bucket. To divide
it first would take a fifth more time for each task that is counted.
"""

from collections.abc import Sequence
from enum import IntEnum
from typing import Final

from taskmanager.model.clock import DAY_US, HOUR_US, SECOND_US

BUCKET_COUNT: Final = 16
_LAST: Final = BUCKET_COUNT - 1
_FIRST_BITS: Final = 10
_RATIO: Final = 4


class Span(IntEnum):
    """The length of what is counted together, in seconds."""

    MINUTE = 60
    HOUR = 3600

    @property
    def us(self) -> int:
        """Return its length in microseconds."""
        return self * SECOND_US

    @property
    def kept_us(self) -> int:
        """Return how long the figures of such spans are kept."""
        return 48 * HOUR_US if self is Span.MINUTE else 30 * DAY_US

    def begin_of(self, instant_us: int) -> int:
        """Return when the span began in which an instant lies."""
        return instant_us - instant_us % self.us


def bucket_of(duration_us: int) -> int:
    """Return the bucket of a duration: 0 below about 1 ms, 1 below 4 ms, 2 below 16 ms; 15 from three days on.

    A clock that was set back makes a negative one. It counts as much as one that was set ahead.
    """
    return bucket_of_bits(duration_us.bit_length())


def bucket_of_bits(bit_count: int) -> int:
    """Return the bucket of a duration whose number of microseconds has so many bits."""
    return min(_LAST, max(0, bit_count - _FIRST_BITS + 1) // 2)


def upper_us(bucket: int) -> int:
    """Return the shortest duration that is too long for a bucket. The last bucket holds all longer ones."""
    return 1 << (_FIRST_BITS + 2 * bucket)


def percentile_us(buckets: Sequence[int], share: float) -> int | None:
    """Return the duration that `share` of all counted ones, such as 0.95, do not exceed; None if none was counted.

    Within its bucket it is estimated, as if durations were spread evenly over the logarithm.
    """
    total = sum(buckets)
    if total <= 0:
        return None
    wanted = min(max(share, 0.0), 1.0) * total
    for bucket, count in enumerate(buckets):
        if count > 0 and wanted <= count:
            share_us: float = upper_us(bucket) * _RATIO ** (wanted / count - 1)
            return round(share_us)
        wanted -= count
    return upper_us(max(bucket for bucket, count in enumerate(buckets) if count > 0))


def plus(one: Sequence[int], other: Sequence[int]) -> tuple[int, ...]:
    """Return the counts of two lists of buckets together."""
    return tuple(first + second for first, second in zip(one, other, strict=True))

"""Values that no function returns on purpose, whatever its lane. To call them a success would be to say that work was
done which has not been.
"""

from types import CoroutineType

from taskmanager.model.result import Snooze, TaskError


def mistake_in(value: object) -> TypeError | None:
    """The failure that a returned value is, or None."""
    if isinstance(value, CoroutineType):
        value.close()  # the failure says what a warning of Python would
        return TypeError(
            f"the function returned the coroutine {value.__name__}, and nobody has awaited it: make the function async "
            "def and await it there; a decorator around an async function must be async itself"
        )
    if isinstance(value, TaskError):
        return TypeError(f"the function returned {value!r} as if it were a value; TaskResult(err=...) fails with it")
    if value is Snooze:
        return TypeError("the function returned the class Snooze; Snooze(30) is what makes it run again")
    return None

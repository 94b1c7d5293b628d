"""Suggests the known name that was meant by an unknown one, which is mostly a typo."""

from collections.abc import Iterable


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return `; did you mean 'mail'?`, or nothing if no known name is near. `good` is near to `app.jobs:good`."""
    from difflib import get_close_matches  # a name that is known needs no other

    ordered = sorted(known)
    ends = (f":{name}", f".{name}")
    near = [each for each in ordered if each.endswith(ends)] or get_close_matches(name, ordered, n=1)
    return f"; did you mean {near[0]!r}?" if near else ""

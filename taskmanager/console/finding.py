"""What one check of `taskmanager doctor` has found: made by the checks, drawn by the console."""

from typing import NamedTuple


class Finding(NamedTuple):
    """The name of the check, whether all is well, what was found, and what to do; no advice where all is well."""

    name: str
    is_well: bool
    found: str
    advice: str = ""

"""The schedules of one instance: `loop` has the rounds, in which they are declared, heard of and fired."""

from typing import Final

NAME: Final = "schedules"

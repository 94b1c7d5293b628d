"""Whether the file is sound, for `taskmanager doctor`: reads only, on a connection that cannot write."""

import sqlite3
from typing import Final

MAX_FAULTS: Final = 5
"""Faults of the file that are told one by one; where there is one, there are mostly hundreds."""


def damages(connection: sqlite3.Connection, most: int = MAX_FAULTS) -> list[str]:
    """What is wrong with the pages and indexes of the file, a sentence each; it reads all of it. A row that breaks a
    `CHECK` harms no other, and is no damage of the file.
    """
    connection.execute("PRAGMA ignore_check_constraints = ON")
    try:
        return [str(line) for (line,) in connection.execute(f"PRAGMA integrity_check({most})") if line != "ok"]
    finally:
        connection.execute("PRAGMA ignore_check_constraints = OFF")


def faults(connection: sqlite3.Connection) -> list[str]:
    """The damages of the file, and rows that belong to none."""
    found = []
    try:
        found += damages(connection)
        for table, row, parent, _ in connection.execute("PRAGMA foreign_key_check"):
            found.append(f"row {row} of {table} belongs to no row of {parent}")
            if len(found) >= MAX_FAULTS:
                break
    except sqlite3.DatabaseError as error:
        found.append(str(error))
    return found

"""Numbers with their nouns, as messages and screens show them."""


def counted(number: int, one: str) -> str:
    """`1 task`, `1,200 tasks`."""
    return f"1 {one}" if number == 1 else f"{number:,} {one}s"

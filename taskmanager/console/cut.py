"""Text that is too long for its place on a screen."""


def cut(text: str, limit: int) -> str:
    """At most `limit` characters, and a sign where some are missing."""
    return text if len(text) <= limit else f"{text[: limit - 1]}…"


def cut_front(text: str, width: int) -> str:
    """`…jobs:build_report`: of a long name the end says more than the beginning."""
    from rich.cells import cell_len  # the rest of this module is for programs too that never draw

    if cell_len(text) <= width:
        return text
    while text and cell_len(text) > width - 1:
        text = text[max(1, (cell_len(text) - width + 1) // 2) :]
    return f"…{text}"

"""Foreign text on a terminal: names, messages and tracebacks must not move the cursor, ring the bell or hide a line."""


def escaped(text: str) -> str:
    """One line that can be printed and stored: control characters and bytes that are no text become escapes."""
    return "".join(
        each if each.isprintable() else each.encode("unicode_escape", "surrogatepass").decode() for each in text
    )


def escaped_lines(text: str) -> str:
    """The same for a text of several lines: they stay apart, and a tab is four spaces."""
    return "\n".join(escaped(line) for line in text.expandtabs(4).split("\n"))


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

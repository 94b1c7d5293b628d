"""Escapes text of others, such as names and messages, so that it may be printed, stored and logged."""


def escaped(text: str) -> str:
    """Return one line that can be printed and stored. Control characters and bytes that are no text become escapes."""
    return "".join(
        each if each.isprintable() else each.encode("unicode_escape", "surrogatepass").decode() for each in text
    )


def escaped_lines(text: str) -> str:
    """Do the same for a text of several lines. The lines stay apart, and a tab becomes four spaces."""
    return "\n".join(escaped(line) for line in text.expandtabs(4).split("\n"))

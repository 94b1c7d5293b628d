"""Text of others, such as a name or the message of an exception, as it may be printed, stored and logged."""


def escaped(text: str) -> str:
    """One line that can be printed and stored: control characters and bytes that are no text become escapes."""
    return "".join(
        each if each.isprintable() else each.encode("unicode_escape", "surrogatepass").decode() for each in text
    )


def escaped_lines(text: str) -> str:
    """The same for a text of several lines: they stay apart, and a tab is four spaces."""
    return "\n".join(escaped(line) for line in text.expandtabs(4).split("\n"))

"""Text that every record and file can contain."""


def storable(text: str) -> str:
    """Return the text with `?` for each character that UTF-8 cannot encode: a byte of a file name, half of an emoji."""
    return text.encode("utf-8", "replace").decode()

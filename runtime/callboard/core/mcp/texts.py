"""Words of servers: data of strangers, cut and cleaned before a person or a model sees them. Pure."""

from __future__ import annotations

import re

LONGEST = 2_000
"""Characters of a description or of a server's instructions (2 kB, as other programs cut them)."""
_UNWANTED = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f\ud800-\udfff]")
"""Control characters other than tab, newline and carriage return, and halves of surrogate pairs, which no file and no
request can hold."""


def clean(text: object) -> str:
    """A text without what no request can hold; what is no text is the empty one."""
    return _UNWANTED.sub("\N{REPLACEMENT CHARACTER}", text) if isinstance(text, str) else ""


def cut(text: object, most: int = LONGEST) -> str:
    """Cleaned and at most `most` characters, the cut marked."""
    whole = clean(text)
    return whole if len(whole) <= most else f"{whole[: most - 12].rstrip()} [...cut...]"[:most]


def one_line(text: object, most: int = 300) -> str:
    """Cleaned, white space made single blanks, cut."""
    return cut(" ".join(clean(text).split()), most)

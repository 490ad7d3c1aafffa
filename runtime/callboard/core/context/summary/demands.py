"""What a person demands, found in their words: sentences that allow, forbid or bound something. Pure.

It serves messages that are too long to stand in the view: their constraints stay word for word. It is a search for
words, in a few languages, and takes rather too much than too little; in other languages the summary is told to quote.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

LONGEST = 400
"""Characters: a longer sentence is pasted material, not a demand."""

_ENDS = re.compile(r"(?<=[.!?;])\s+|(?<=[。！？；])|\n+")
_MARKS = re.compile(
    r"\b(?:must|never|always|do not|don['’]t|does not|cannot|can['’]t|not|no|only|without|avoid|at most|at least"
    r"|exactly|more than|less than|fewer than|should|shall|have to|has to|needs? to|required?|forbid(?:den)?"
    r"|allow(?:ed)?|ensure|make sure|keep|use|prefer|instead|unless|until|except|limit|leave|important"
    r"|muss|müssen|nie(?:mals)?|immer|nicht|kein\w*|nur|ohne|soll\w*|darf|dürfen|höchstens|mindestens|verwende\w*"
    r"|jamais|toujours|doit|doivent|sans|uniquement|seulement|pas|interdit|nunca|siempre|debe\w*|sin|solo|sólo)\b"
    r"|必须|必須|不要|不得|不能|不可|禁止|只能|务必|始终|必ず|しないで|いけない|のみ|だけ",
    re.IGNORECASE,
)


def demands_of(text: str) -> Iterator[str]:
    """The sentences that demand something, in order, each once, with their white space made single."""
    seen: set[str] = set()
    for sentence in _ENDS.split(text):
        said = " ".join(sentence.split())
        if 3 < len(said) <= LONGEST and said not in seen and _MARKS.search(said):
            seen.add(said)
            yield said

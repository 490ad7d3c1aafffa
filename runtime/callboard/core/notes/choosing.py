"""Which notes the words of a turn are about. Pure: the same words and notes choose the same.

A word counts by how rare it is among the notes, and by where it stands: in the name, in the description, or in the
text. Words that stand everywhere say nothing. A note is chosen only where enough of it is meant:
a chance word brings none.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from itertools import pairwise

from callboard.core.notes.note import Note

MOST = 5
"""Notes of one turn (docs/memory.md)."""
IN_NAME, IN_DESCRIPTION, IN_BODY = 3.0, 2.0, 1.0
LEAST = 2.0
"""What a note's words must weigh: a rare word of the name or description, or several of the text."""
_WORDS = re.compile(r"[^\W_]+")
_WIDE = re.compile(r"[\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af]")
"""Letters of languages that put no blanks between words: two neighbours count as a word."""
_EVERYWHERE = frozenset(
    re.findall(
        r"\w+",
        """
        about above after again all also always and any are because been before being below between
        both but can could did does doing done down each few for from further get had has have
        having her here hers him his how into its itself just let like make many more most much must
        need nor not now off once one only other our ours out over own please same she should show
        some such tell than that the their theirs them then there these they this those through too
        under until use used uses using very want was way were what when where which while who whom
        why will with work would you your yours new file files thing things note notes add change
        """,
    )
)
"""Words that say nothing of what a text is about."""


def terms(text: str) -> frozenset[str]:
    """The words of a text that say something, in a form that plurals and endings share."""
    found: set[str] = set()
    for word in _WORDS.findall(text.casefold()):
        wide = _WIDE.findall(word)
        if wide:
            found |= {a + b for a, b in pairwise(wide)} or {word}
        elif len(word) > 2 and word not in _EVERYWHERE:
            found.add(_stem(word))
    return frozenset(found)


def chosen(words: str, notes: Sequence[tuple[str, Note]], most: int = MOST) -> tuple[str, ...]:
    """The keys of the notes (key, note) that `words` are about, the best first, `most` of them."""
    asked = terms(words)
    if not asked or not notes or most < 1:
        return ()
    places = {key: (terms(_spaced(note.name)), terms(note.description), terms(note.body)) for key, note in notes}
    known = {term: sum(any(term in place for place in found) for found in places.values()) for term in asked}
    scores = {key: _score(found, known, len(notes)) for key, found in places.items()}
    fitting = sorted((key for key, score in scores.items() if score >= LEAST), key=lambda key: (-scores[key], key))
    return tuple(fitting[:most])


def _score(found: Sequence[frozenset[str]], known: dict[str, int], count: int) -> float:
    """The sum over the asked words: where each stands best, times how rare it is."""
    total = 0.0
    for term, among in known.items():
        weight = next(
            (w for w, place in zip((IN_NAME, IN_DESCRIPTION, IN_BODY), found, strict=True) if term in place), 0.0
        )
        total += weight * _rarity(among, count)
    return total


def _rarity(among: int, count: int) -> float:
    """1 for a word of one note alone, down towards 0.3 for one that stands in all of many."""
    return 1.0 if among <= 1 else max(0.3, 1.0 - math.log(among) / (1.0 + math.log(count + 1)))


def _spaced(name: str) -> str:
    return re.sub(r"[-_.]+", " ", name)


def _stem(word: str) -> str:
    """The word without an ending that changes nothing of what it is about."""
    for ending, instead in (("ies", "y"), ("ing", ""), ("edly", ""), ("ed", ""), ("es", ""), ("s", "")):
        if word.endswith(ending) and len(word) - len(ending) >= 3 and not word.endswith("ss"):
            return _final(word.removesuffix(ending) + instead)
    return _final(word)


def _final(word: str) -> str:
    """`deploy`, `deployed`; `release`, `releas`(ed); `running`, `run`: one form."""
    word = word.removesuffix("e") if len(word) > 3 else word
    return word[:-1] if len(word) > 3 and word[-1] == word[-2] else word

"""Choice of the notes that are relevant to the text of a turn. Pure: the same text and notes give the same choice.

The weight of a word depends on its rarity among the notes, and on its position: in the name, in the description, or in
the text. Words that occur everywhere have no weight. A note is chosen only if enough of its words match; a single
accidental word is not enough.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from itertools import pairwise

from callboard.core.memory.note import Note
from callboard.types.late_pattern import late_pattern

MOST = 5
"""Maximum notes of one turn (docs/memory.md)."""
IN_NAME = 3.0
IN_DESCRIPTION = 2.0
IN_BODY = 1.0
LEAST = 2.0
"""Minimum total weight of a note's matching words: a rare word of the name or description, or several of the text."""
_WORDS = late_pattern(r"[^\W_]+")
_WIDE = late_pattern(r"[\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af]")
"""Letters of languages without spaces between words: each pair of neighbours counts as a word."""
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
"""Words that do not indicate the subject of a text."""


def terms(text: str) -> frozenset[str]:
    """Return the meaningful words of a text, in a form that is the same for plurals and endings."""
    stems: set[str] = set()
    for word in _WORDS.findall(text.casefold()):
        wide = _WIDE.findall(word)
        if wide:
            stems |= {a + b for a, b in pairwise(wide)} or {word}
        elif len(word) > 2 and word not in _EVERYWHERE:
            stems.add(_stem(word))
    return frozenset(stems)


def chosen(text: str, notes: Sequence[tuple[str, Note]], most: int = MOST) -> tuple[str, ...]:
    """Return the keys of the notes (key, note) that are relevant to `text`, the best first, at most `most`."""
    query_terms = terms(text)
    if not query_terms or not notes or most < 1:
        return ()
    places = {key: (terms(_spaced(note.name)), terms(note.description), terms(note.body)) for key, note in notes}
    counts = {term: sum(any(term in place for place in fields) for fields in places.values()) for term in query_terms}
    scores = {key: _score(fields, counts, len(notes)) for key, fields in places.items()}
    fitting = sorted((key for key, score in scores.items() if score >= LEAST), key=lambda key: (-scores[key], key))
    return tuple(fitting[:most])


def _score(fields: Sequence[frozenset[str]], counts: dict[str, int], count: int) -> float:
    """Return the sum over the query's words: the best position of each, times its rarity."""
    total = 0.0
    for term, among in counts.items():
        weight = next(
            (w for w, place in zip((IN_NAME, IN_DESCRIPTION, IN_BODY), fields, strict=True) if term in place), 0.0
        )
        total += weight * _rarity(among, count)
    return total


def _rarity(among: int, count: int) -> float:
    """Return 1 for a word of only one note, down towards 0.3 for a word of all of many notes."""
    return 1.0 if among <= 1 else max(0.3, 1.0 - math.log(among) / (1.0 + math.log(count + 1)))


def _spaced(name: str) -> str:
    return re.sub(r"[-_.]+", " ", name)


def _stem(word: str) -> str:
    """Return the word without an ending that does not change its subject."""
    for ending, instead in (("ies", "y"), ("ing", ""), ("edly", ""), ("ed", ""), ("es", ""), ("s", "")):
        if word.endswith(ending) and len(word) - len(ending) >= 3 and not word.endswith("ss"):
            return _final(word.removesuffix(ending) + instead)
    return _final(word)


def _final(word: str) -> str:
    """Return one form for variants: `deploy`, `deployed`; `release`, `releas`(ed); `running`, `run`."""
    word = word.removesuffix("e") if len(word) > 3 else word
    return word[:-1] if len(word) > 3 and word[-1] == word[-2] else word

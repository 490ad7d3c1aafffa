"""Check of user-written JSON before it is parsed: the depth of its values, and the length of its numbers.

The code that reads the values is recursive.
"""

from __future__ import annotations

import re

from callboard.types.late_pattern import late_pattern

DEEPEST = 100
"""Maximum levels. User-written files have about ten."""
LONGEST_NUMBER = 400
"""Maximum digits in a row, as in YAML files. Python refuses integers of more than 4,300 in words of its own."""
_MARK = late_pattern(r'"(?:[^"\\]++|\\.)*+"?|[\[{\]}]|[0-9]++', re.DOTALL)


def check_json_limits(text: str) -> None:
    """Raise ValueError, with the line, for values nested deeper than `DEEPEST` or numbers over `LONGEST_NUMBER`."""
    depth = 0
    for match in _MARK.finditer(text):
        mark = match[0]
        if mark in ("[", "{"):
            depth += 1
            if depth > DEEPEST:
                line = text.count("\n", 0, match.start()) + 1
                raise ValueError(f"is nested too deeply: more than {DEEPEST} levels (line {line})")
        elif mark in ("]", "}"):
            depth -= 1
        elif len(mark) > LONGEST_NUMBER and mark[0] != '"':
            line = text.count("\n", 0, match.start()) + 1
            raise ValueError(f"has a number of more than {LONGEST_NUMBER} digits (line {line})")

"""Regular expressions that are compiled when they are first used.

The modules of a start have 300 patterns. Compiling them takes 30 ms, and a command uses few of them.
"""

from __future__ import annotations

import re
from typing import Any, AnyStr, cast

_METHODS = ("match", "fullmatch", "search", "sub", "subn", "split", "findall", "finditer")


def late_pattern(text: AnyStr, flags: int = 0) -> re.Pattern[AnyStr]:
    """Return an object with the methods and attributes of `re.compile(text, flags)`.

    Only the functions of `re` do not take it as a pattern: call its methods. Raises `re.error` at the first use.
    """
    return cast("re.Pattern[AnyStr]", _LatePattern(text, flags))


class _LatePattern:
    """Pattern that has no methods of its own until the first one is asked for, and from then on those of `re`."""

    def __init__(self, text: str | bytes, flags: int) -> None:
        self.pattern = text
        self._flags = flags

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        pattern = re.compile(self.pattern, self._flags)
        for method in _METHODS:
            setattr(self, method, getattr(pattern, method))
        return getattr(pattern, name)

    def __repr__(self) -> str:
        return repr(re.compile(self.pattern, self._flags))

"""Parses shell scripts for the permission judge: our own reader for what is plain, shfmt for the rest.

Odd characters and sizes are refused before any parser sees them, since parsers and bash disagree about them. Plain
commands take the quick way (`shell_plain`, about 0.1 ms), which tree-sitter-bash must agree with; all that expands or
nests goes to shfmt (about 3 ms), whose tree hides nothing of what bash would run. A failure, a time-out or a form that
is not understood gives `Unparsed`, which asks. Nothing is ever run here, and nothing is raised.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import unicodedata
from functools import lru_cache
from pathlib import Path
from typing import Any

from callboard.adapters.shell_plain import PlainReader
from callboard.adapters.shell_tree import NotUnderstood, script_from_tree
from callboard.core.permission.values import Parsed, Unparsed

MOST_CHARACTERS = 10_000
MOST_OPERATORS = 300
"""Characters `&` and `|`: chains of them nest, and the tree of a long chain grows with its square."""
SECONDS = 5.0
REMEMBERED = 256
"""Scripts that a parser remembers: an agent runs the same few over and over."""

_ODD_CATEGORIES = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp", "Zs"})

_INVISIBLE = re.compile(
    "[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u2800\u3164\ufe00-\ufe0e\uffa0\U000e0100-\U000e01ef]"
    "|(?<![\u2000-\u2bff\U0001f000-\U0001faff])\ufe0f"
)
"""Characters that show nothing, though Unicode counts them as letters or marks. U+FE0F is at home after a symbol."""


def find_shfmt() -> str | None:
    """Return the shfmt of our own environment, else one on the PATH, else None."""
    beside = Path(sys.executable).parent / "shfmt"
    return str(beside) if beside.is_file() else shutil.which("shfmt")


class BashParser:
    """The `ShellParser` of real use. `shfmt` is the program's path; without one only what is plain is understood.

    `plain`: the quick way is taken where it can be.
    """

    def __init__(self, shfmt: str | None = None, *, plain: bool = True) -> None:
        self._shfmt = shfmt or find_shfmt()
        self._plain = PlainReader() if plain else None
        self._parsed = lru_cache(maxsize=REMEMBERED)(self._parse)

    def parse(self, source: str) -> Parsed:
        """Return the script as bash would read it, or `Unparsed` with the reason. Never raises."""
        return self._parsed(source)

    def _parse(self, source: str) -> Parsed:
        if refusal := _refuse(source):
            return refusal
        return (self._plain.read(source) if self._plain else None) or self._with_shfmt(source)

    def _with_shfmt(self, source: str) -> Parsed:
        if self._shfmt is None:
            return Unparsed("the parser shfmt is not installed: reinstall the package")
        try:
            done = subprocess.run(
                [self._shfmt, "--to-json", "-ln", "bash"],
                input=source.encode(),
                capture_output=True,
                timeout=SECONDS,
                check=False,
                env={},
            )
            if done.returncode != 0:
                return Unparsed("it is not a valid script: " + done.stderr.decode(errors="replace").strip()[:200])
            tree: Any = json.loads(done.stdout)
            return script_from_tree(tree)
        except (OSError, subprocess.TimeoutExpired, ValueError, RecursionError) as error:
            return Unparsed(f"the parser failed ({type(error).__name__})")
        except NotUnderstood as form:
            return Unparsed(f"it uses {form}, which is not understood")


def _refuse(source: str) -> Unparsed | None:
    if "\0" in source:
        return Unparsed("it holds a NUL character", nul=True)
    if len(source) > MOST_CHARACTERS:
        return Unparsed(f"it is longer than {MOST_CHARACTERS:,} characters")
    if sum(map(source.count, "&|")) > MOST_OPERATORS:
        return Unparsed("it joins too many commands")
    if source.isascii():
        odd = next((c for c in source if (c < " " and c not in "\t\n") or c == "\x7f"), None)
    else:
        odd = next((c for c in source if c not in "\t\n " and unicodedata.category(c) in _ODD_CATEGORIES), None)
        odd = odd or next((match[0] for match in _INVISIBLE.finditer(source)), None)
    if odd is not None:
        return Unparsed(f"it holds an invisible or odd character (U+{ord(odd):04X})")
    return None

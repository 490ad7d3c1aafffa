"""Which files a search through many leaves out: those that reading would ask or be denied for, one by one. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from callboard.core.permission import gitignore, rules
from callboard.core.permission.gitignore import Anchors
from callboard.core.permission.paths import is_secret
from callboard.core.permission.values import Rule


def rules_on_reading(deny: Sequence[Rule], ask: Sequence[Rule]) -> tuple[Rule, ...]:
    """Of these rules those that name paths which are not read unasked."""
    named = ("Read", "read_file")
    return tuple(rule for rule in (*deny, *ask) if rule.tool in named and rule.specifier is not None)


def readable_rules(texts: Iterable[str]) -> list[Rule]:
    """The rules among texts; one that is none is left out."""
    found: list[Rule] = []
    for text in texts:
        try:
            found.append(rules.parse_rule(text))
        except ValueError:
            continue
    return found


def is_left_out(path: str, asked: str, unread: Sequence[Rule], root: str, home: str) -> bool:
    """Whether a search that was asked to look at `asked` passes over a file beneath it. Both are absolute. What was
    itself named as the place to look at has been judged already."""
    if asked == path:
        return False
    if is_secret(_inside(path, root)) and not is_secret(_inside(asked, root)):
        return True
    return any(
        gitignore.names_path(rule.specifier or "", path, Anchors(root, home, rule.base), loose=True) for rule in unread
    )


def _inside(path: str, root: str) -> list[str]:
    return path.removeprefix(root).strip("/").split("/")

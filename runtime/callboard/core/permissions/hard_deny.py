"""The floor: commands that are never run, regardless of rules, modes and settings (docs/permissions.md, letter S).

Commands are judged by their effect, not by their spelling: words are compared after quotes, escapes and wrappers are
removed. Destruction by path (deleting `/`, writing to a disk) is judged with the paths, in `judge`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from callboard.core.permissions import command_table as table
from callboard.core.permissions.effects import Risk
from callboard.core.permissions.values import Function, Group, Node, Pipeline, ProgramWords, Script, Simple, Text, Word
from callboard.types.late_pattern import late_pattern

_FORKERS = late_pattern(r"perl|ruby|python[\d.]*")
_FORKS = late_pattern(
    r"(?s)(?:\bwhile\s*\(?\s*(?:1|[Tt]rue)\b|\bloop\s*(?:do\b|\{)|\bfor\s*\(\s*;\s*;\s*\)).*\bfork\b"
    r"|\bfork\b\s*(?:\(\s*\))?\s*while\b|\bwhile\s*\(?\s*fork\b"
)
_POWER_WORDS = late_pattern(
    r"(?i)\b(?:poweroff|reboot|halt|kexec|suspend|hibernate|hybrid-sleep|emergency|rescue|soft-reboot)\b"
)


def never(command: ProgramWords) -> Risk | None:
    """Return the denial of a command that is never run regardless of its paths, or None."""
    base = command.name.rpartition("/")[2]
    texts = [arg.text for arg in command.args]
    label = f"`{base}`"
    if base in table.NEVER_PRIVILEGE:
        return Risk("S", f"{label} gains privileges", "never")
    if base in table.NEVER_POWER or _changes_power(base, texts):
        return Risk("S", f"{label} changes the machine's power state or its kernel", "never")
    if base in table.NEVER_DISK or _wipes(base, texts) or base == "mkfs" or base.startswith(("mkfs.", "newfs_")):
        return Risk("S", f"{label} makes or wipes file systems", "never")
    if _FORKERS.fullmatch(base) and any(_FORKS.search(text) for text in texts):
        return Risk("S", f"{label} would multiply itself without end", "never")
    if base in table.LISTERS_OF_DISKS and not {"-l", "--list", "-v", "--version"} & set(texts):
        return Risk("S", f"{label} changes partitions", "never")
    return None


def _wipes(base: str, texts: Sequence[str]) -> bool:
    if base == "hdparm":
        return any(text.startswith(("--security-", "--trim-sector", "--dco-", "--make-bad")) for text in texts)
    if base == "diskutil":
        return any(re.match(r"(?i)erase|partition|zero|secureErase|reformat", text) for text in texts[:1])
    return not table.WIPERS.get(base, frozenset()).isdisjoint(texts)


def _changes_power(base: str, texts: Sequence[str]) -> bool:
    if base in ("init", "openrc-shutdown"):
        return any(text in ("0", "1", "6", "s", "S") for text in texts)
    if base in ("systemctl", "loginctl", "dbus-send", "gdbus", "busctl", "initctl"):
        return any(_POWER_WORDS.search(text.replace(".", " ")) or "PowerOff" in text for text in texts)
    if base == "sysctl":
        return any(t in ("-w", "--write", "-p", "--load", "--system") or t.startswith("-p") or "=" in t for t in texts)
    return False


def is_fork_bomb(script: Script) -> bool:
    """Return True if a function of the script starts itself twice: in a pipe, or in the background."""
    functions = {node.name: node for node in walk(script.nodes) if isinstance(node, Function)}
    calls = {name: _called(function.body) & set(functions) for name, function in functions.items()}
    for name, function in functions.items():
        reached = _reach(name, calls)
        if name in reached and _multiplies(function.body, reached | {name}):
            return True
    return False


def _reach(name: str, calls: dict[str, set[str]]) -> set[str]:
    reached = set[str]()
    todo = [name]
    while todo:
        fresh = calls.get(todo.pop(), set[str]()) - reached
        reached |= fresh
        todo += fresh
    return reached


def _multiplies(body: Iterable[Node], names: set[str]) -> bool:
    for node in walk(body):
        inside: tuple[Node, ...] = ()
        if isinstance(node, Pipeline):
            inside = node.stages
        elif isinstance(node, Group) and node.kind in ("background", "coproc"):
            inside = node.body
        if inside and _called(inside) & names:
            return True
    return False


def _called(nodes: Iterable[Node]) -> set[str]:
    return {name_of(node.words[0]) for node in walk(nodes) if isinstance(node, Simple) and node.words}


def name_of(word: Word) -> str:
    """Return the literal characters of a word."""
    return "".join(part.text for part in word.parts if isinstance(part, Text))


def walk(nodes: Iterable[Node]) -> Iterable[Node]:
    """Yield these nodes and all beneath them, except scripts inside words."""
    for node in nodes:
        yield node
        if isinstance(node, Pipeline):
            yield from walk(node.stages)
        elif isinstance(node, Group | Function):
            yield from walk(node.body)

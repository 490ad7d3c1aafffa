"""The floor: what is never run, whatever a rule, a mode or a person's setting says (docs/permissions.md, letter S).

Judged by what a command is, not by its spelling: words are compared after quotes, escapes and wrappers are gone. What a
program destroys by its paths (deleting `/`, writing to a disk) is judged where paths are, in `judge`.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterable, Sequence

from callboard.core.permission import commands as table
from callboard.core.permission.effects import Does
from callboard.core.permission.options import Command
from callboard.core.permission.values import Function, Group, Node, Pipeline, Script, Simple, Text, Word

_HARMLESS_DEVICES = re.compile(r"/dev/(?:null|zero|full|stdin|stdout|stderr|tty|fd/\d+|u?random)")
_DEVICE_FOLDERS = re.compile(r"/dev/(?:shm|pts|tcp|udp)(?:/|$)|/dev/fd$")
_KERNEL = re.compile(r"/(?:proc/sys|proc/sysrq-trigger|sys)(?:/|$)")
_FORKERS = re.compile(r"perl|ruby|python[\d.]*")
_FORKS = re.compile(
    r"(?s)(?:\bwhile\s*\(?\s*(?:1|[Tt]rue)\b|\bloop\s*(?:do\b|\{)|\bfor\s*\(\s*;\s*;\s*\)).*\bfork\b"
    r"|\bfork\b\s*(?:\(\s*\))?\s*while\b|\bwhile\s*\(?\s*fork\b"
)
_POWER_WORDS = re.compile(
    r"(?i)\b(?:poweroff|reboot|halt|kexec|suspend|hibernate|hybrid-sleep|emergency|rescue|soft-reboot)\b"
)


def never(command: Command) -> Does | None:
    """Return the denial of a command that is never run for what it is, or None."""
    base = command.name.rpartition("/")[2]
    texts = [arg.text for arg in command.args]
    shown = f"`{base}`"
    if base in table.NEVER_PRIVILEGE:
        return Does("S", f"{shown} gains privileges", "never")
    if base in table.NEVER_POWER or _changes_power(base, texts):
        return Does("S", f"{shown} changes the machine's power state or its kernel", "never")
    if base in table.NEVER_DISK or _wipes(base, texts) or base == "mkfs" or base.startswith(("mkfs.", "newfs_")):
        return Does("S", f"{shown} makes or wipes file systems", "never")
    if _FORKERS.fullmatch(base) and any(_FORKS.search(text) for text in texts):
        return Does("S", f"{shown} would multiply itself without end", "never")
    if base in table.LISTERS_OF_DISKS and not {"-l", "--list", "-v", "--version"} & set(texts):
        return Does("S", f"{shown} changes partitions", "never")
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


def harmless_device(path: str) -> bool:
    """Whether reading and writing this device changes nothing."""
    return _HARMLESS_DEVICES.fullmatch(path) is not None


def raw_device(path: str) -> bool:
    """Whether the path names a device that holds a disk, memory or a kernel switch."""
    if _KERNEL.match(path):
        return True
    return path.startswith("/dev/") and not harmless_device(path) and not _DEVICE_FOLDERS.match(path)


def critical(path: str, home: str, *, glob: bool = False) -> bool:
    """Whether deleting this absolute path, read as text, would destroy the machine or a home directory."""
    path = "/" + posixpath.normpath(path).lstrip("/")
    if glob:
        head, _, last = path.rpartition("/")
        fixed = head if not re.search(r"[*?\[]", head) else re.split(r"/[^/]*[*?\[]", head)[0]
        if not last.strip("*?[]!.") or fixed == "":
            return critical(fixed or "/", home)
        return False
    parts = [part for part in path.split("/") if part]
    home_parts = [part for part in posixpath.normpath(home).split("/") if part]
    if not parts or parts == home_parts[: len(parts)]:
        return True
    if len(parts) == 2 and parts[0] in ("home", "Users"):
        return True
    return len(parts) == 1 and parts[0] in table.TOP_LEVEL


def is_fork_bomb(script: Script) -> bool:
    """Whether a function of the script starts itself twice over: in a pipe, or in the background."""
    functions = {node.name: node for node in walk(script.nodes) if isinstance(node, Function)}
    calls = {name: _called(function.body) & set(functions) for name, function in functions.items()}
    for name, function in functions.items():
        reached = _reach(name, calls)
        if name in reached and _multiplies(function.body, reached | {name}):
            return True
    return False


def _reach(name: str, calls: dict[str, set[str]]) -> set[str]:
    reached, todo = set[str](), [name]
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
    """Yield these nodes and all beneath them, but for what runs inside words."""
    for node in nodes:
        yield node
        if isinstance(node, Pipeline):
            yield from walk(node.stages)
        elif isinstance(node, Group | Function):
            yield from walk(node.body)

"""Programs that run another program: what they add, and which program is left when they are taken off.

A wrapper whose options are not fully known still shows its program for denials, but asks.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from callboard.core.permission.commands import HARMLESS_ASSIGNMENTS, names
from callboard.core.permission.effects import Does, Effect
from callboard.core.permission.options import names_long
from callboard.core.permission.words import HOLE, Arg


@dataclass(frozen=True, slots=True)
class Peeled:
    """What a wrapper leaves: the inner words (empty: it runs nothing), its own effects, folders it changes to."""

    inner: tuple[Arg, ...]
    effects: tuple[Effect, ...] = ()
    folder: Arg | None = None
    sure: bool = True
    """False: where the inner program begins is a guess."""


@dataclass(frozen=True, slots=True)
class _Wrapper:
    flags: str = ""
    values: str = ""
    long_flags: tuple[str, ...] = ()
    long_values: tuple[str, ...] = ()
    skip: int = 0
    """Operands before the program."""


TRANSPARENT_FOR_ALLOW = names("timeout time nice nohup stdbuf")

OTHERS = names(
    "ionice chrt taskset watch flock parallel ltrace strace chroot unshare nsenter script setarch linux32 linux64 "
    "systemd-run faketime fakeroot eatmydata proot cpulimit prlimit unbuffer rlwrap dbus-run-session start-stop-daemon "
    "at batch setpriv capsh sg newgrp bwrap firejail numactl catchsegv valgrind torsocks proxychains proxychains4 "
    "torify gtimeout gnice gnohup gstdbuf genv gxargs perf hyperfine choom tmux screen xvfb-run chronic ifne pee "
    "dumb-init tini uclampset trickle cgexec daemonize dbus-launch ssh-agent sshpass aa-exec runcon fakechroot schroot "
    "caffeinate sem rr"
)
"""Programs that run others in ways that are not read here: they ask, and what they would run is judged for denials."""

_WRAPPERS: Mapping[str, _Wrapper] = {
    "nice": _Wrapper(values="n", long_values=("adjustment",)),
    "nohup": _Wrapper(),
    "timeout": _Wrapper("fpv", "ks", ("preserve-status", "foreground", "verbose"), ("kill-after", "signal"), skip=1),
    "time": _Wrapper("pv", "", ("portability", "verbose"), ()),
    "stdbuf": _Wrapper(values="ioe", long_values=("input", "output", "error")),
    "setsid": _Wrapper("cfw", "", ("ctty", "fork", "wait"), ()),
    "command": _Wrapper("p"),
    "builtin": _Wrapper(),
    "exec": _Wrapper("cl", "a"),
    "busybox": _Wrapper(),
    "toybox": _Wrapper(),
}
_XARGS = _Wrapper(
    "0rtpxo",
    "ILnPsdEa",
    ("null", "no-run-if-empty", "verbose", "interactive", "exit", "open-tty"),
    ("max-lines", "max-args", "max-procs", "max-chars", "delimiter", "arg-file"),
)


def is_wrapper(name: str) -> bool:
    """Whether the program is one of the wrappers that are seen through."""
    return name in _WRAPPERS or name in ("env", "xargs")


def peel(name: str, args: Sequence[Arg], stdin: str | None) -> Peeled:
    """Take a wrapper off. `stdin` is the text that it reads, where it is known."""
    if name == "env":
        return _env(list(args))
    if name == "xargs":
        return _xargs(args, stdin)
    if name == "command" and _looks_up(args):
        return Peeled(())
    at, sure = _skip_options(args, _WRAPPERS[name])
    inner = tuple(args[at + _WRAPPERS[name].skip :])
    sure &= _fixed(args[: len(args) - len(inner)])
    return Peeled(inner, () if sure else (_unclear(name),), sure=sure)


def _looks_up(args: Sequence[Arg]) -> bool:
    """Whether `command` has `-v` before the program's name, and so only says where that is."""
    for arg in args:
        if not re.fullmatch(r"-[pvV]+", arg.text):
            return False
        if arg.text.strip("-p"):
            return all(word.known for word in args)
    return False


def _fixed(words: Sequence[Arg]) -> bool:
    """Whether each of these is one word: what is unknown or a glob can become several, the program among them."""
    return all(arg.known and not arg.glob for arg in words)


def _unclear(name: str) -> Does:
    return Does("L", f"an option of `{name}` is not known, so what it runs is not sure", "bypass")


def _skip_options(args: Sequence[Arg], wrapper: _Wrapper) -> tuple[int, bool]:
    """Return where the operands begin, and whether every option before was known."""
    at = 0
    while at < len(args):
        text = args[at].text
        if text == "--":
            return at + 1, True
        if not args[at].known:
            return at, False
        if not text.startswith("-") or text == "-":
            return at, True
        size = _option_size(text, wrapper)
        if size == 0:
            return at, False
        at += size
    return at, True


def _option_size(text: str, wrapper: _Wrapper) -> int:
    """Return how many words the option takes (1 or 2), or 0 when it is not known."""
    if text.startswith("--"):
        word, equals, _ = text[2:].partition("=")
        if any(name.startswith(word) for name in wrapper.long_flags) and not equals and len(word) > 1:
            return 1
        if any(name.startswith(word) for name in wrapper.long_values) and len(word) > 1:
            return 1 if equals else 2
        return 0
    if wrapper.values == "n" and re.fullmatch(r"--?\d+", text):
        return 1  # nice -10
    for i, letter in enumerate(text[1:], start=1):
        if letter in wrapper.values:
            return 1 if i < len(text) - 1 else 2
        if letter not in wrapper.flags:
            return 0
    return 1


def _xargs(args: Sequence[Arg], stdin: str | None) -> Peeled:
    effects: list[Effect] = [Does("X", "`xargs` runs a program with words that it reads")]
    known = not any(re.match(r"-(?:[0rtpxo]*I|i|-replace)", arg.text) for arg in args)
    at, sure = _skip_options(args, _XARGS)
    if not sure:
        effects.append(_unclear("xargs"))
    program = list(args[at:]) or [Arg("echo")]
    if any(re.match(r"-[0rtpxo]*a|--arg", arg.text) for arg in args[:at]):
        effects.append(Does("O", "`xargs` reads its words from a file"))
    if not known:
        placeholder = _placeholder([arg.text for arg in args[:at]])
        words = stdin.strip() if stdin is not None else HOLE
        return Peeled(tuple(_replaced(arg, placeholder, words) for arg in program), tuple(effects), sure=sure)
    if stdin is not None and not re.search(r"[\"'\\]", stdin):
        return Peeled((*program, *(Arg(word) for word in stdin.split())), tuple(effects), sure=sure)
    return Peeled((*program, Arg(HOLE)), tuple(effects), sure=sure)


def _placeholder(options: Sequence[str]) -> str:
    """Return what `-I` replaces: the word after it, or what is attached to it, else `{}`."""
    for i, text in enumerate(options):
        if re.fullmatch(r"-[0rtpxo]*I", text):
            return options[i + 1] if i + 1 < len(options) else "{}"
        if match := re.fullmatch(r"-[0rtpxo]*I(.+)|-i(.+)|--replace=(.+)", text):
            return match[1] or match[2] or match[3]
    return "{}"


def _replaced(arg: Arg, placeholder: str, words: str) -> Arg:
    return Arg(arg.text.replace(placeholder, words)) if placeholder in arg.text else arg


def harmless_assignment(name: str) -> bool:
    """Whether setting this variable leaves every decision as it is (letter V)."""
    return name in HARMLESS_ASSIGNMENTS or re.fullmatch(r"LC_[A-Z]+", name) is not None


def _env(args: list[Arg]) -> Peeled:
    effects: list[Effect] = []
    folder: Arg | None = None
    while args:
        text = args[0].text
        if not _fixed(args[: 2 if text in ("-u", "--unset", "-C", "--chdir") else 1]):
            return Peeled(tuple(args), (*effects, _unclear("env")), folder, sure=False)
        assignment = re.match(r"([A-Za-z_]\w*)=", text)
        if assignment and not harmless_assignment(assignment[1]):
            effects.append(Does("V", f"it sets the variable {assignment[1]}", "bypass"))
        elif text in ("-u", "--unset", "-C", "--chdir") and len(args) > 1:
            folder = args[1] if text in ("-C", "--chdir") else folder
            args.pop(0)
        elif text.startswith(("--chdir=", "-C")):
            folder = Arg(text.removeprefix("--chdir=").removeprefix("-C"))
        elif text.startswith("-S") or (text.startswith("--") and names_long(text, ("split-string",))):
            return Peeled(_split(text, args[1:]), (*effects, _unclear("env")), folder, sure=False)
        elif not assignment and text not in ("-i", "-", "-0", "-v", "--", "--null", "--ignore-environment"):
            if text.startswith("-") and not text.startswith(("--unset=", "-u")):
                return Peeled(tuple(args[1:]), (*effects, _unclear("env")), folder, sure=False)
            if not text.startswith("-"):
                return Peeled(tuple(args), tuple(effects), folder)
        args.pop(0)
    return Peeled((), (*effects, Does("O", "`env` shows the environment")), folder)


def _split(option: str, rest: Sequence[Arg]) -> tuple[Arg, ...]:
    attached = option.partition("=")[2] if option.startswith("--") else option.removeprefix("-S")
    text, rest = (attached, rest) if attached else (rest[0].text if rest else "", rest[1:])
    return (*(Arg(word.strip("\"'")) for word in text.split()), *rest)

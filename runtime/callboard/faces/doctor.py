"""What a machine has for Callboard, what it lacks and what to do about it. Looks, and changes nothing.

It refuses to call the model service: a key is seen, not tried.
"""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from callboard.adapters.sandbox.machine import examine
from callboard.faces.terminal import Block, Line, Style
from callboard.sandboxing import choice_of
from callboard.settings import Loaded
from callboard.words.errors import SettingsError

State = Literal["found", "missing", "damaged", "broken"]
"""`missing`: Callboard works without it, less well. `damaged`: it works with what is left. `broken`: it does not work
before this is mended."""

_STYLES: Mapping[State, Style] = {"found": "good", "missing": "warn", "damaged": "bad", "broken": "bad"}


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked for. `advice` says what to do when it is not found."""

    what: str
    state: State
    detail: str
    advice: str = ""


def findings_block(findings: Sequence[Finding]) -> Block:
    """A line for each, with its advice under it."""
    width = max(len(one.what) for one in findings)
    lines: list[Line] = []
    for one in findings:
        lines.append(Line(f"{one.state:<8} {one.what:<{width}}  {one.detail}".rstrip(), _STYLES[one.state]))
        if one.state != "found" and one.advice:
            lines.append(Line(f"{'':<8} {'':<{width}}  -> {one.advice}"))
    return Block(tuple(lines))


def exit_code(findings: Sequence[Finding]) -> int:
    """3 when something must be mended first, else 0."""
    return 3 if any(one.state == "broken" for one in findings) else 0


def examine_machine(environ: Mapping[str, str], workspace: Path) -> Iterator[Finding]:
    """Programs, credentials, terminal. Programs are looked for outside the workspace only."""
    version = platform.python_version()
    fits: State = "found" if sys.version_info >= (3, 11) else "broken"
    yield Finding("python", fits, version, "Python 3.11 or newer is needed")
    for name, state, advice in _PROGRAMS:
        yield _program(name, state, advice, environ, workspace)
    yield _key(environ)
    yield _terminal(environ)


def examine_folder(what: str, folder: Path, advice: str) -> Finding:
    """Whether we can write into a folder, or could make it."""
    there = folder
    while not there.exists() and there != there.parent:
        there = there.parent
    if not there.is_dir() or not os.access(there, os.W_OK | os.X_OK):
        return Finding(what, "broken", f"{folder} cannot be written", advice)
    free = shutil.disk_usage(there).free
    if free < _ENOUGH:
        return Finding(what, "broken", f"{folder}: {free // 2**20} MB are free", "free some room on that disk")
    return Finding(what, "found", str(folder))


_ENOUGH = 50 * 2**20
_PROGRAMS: Sequence[tuple[str, State, str]] = (
    ("git", "broken", "install git: worktrees and the demo need it"),
    ("bash", "broken", "install bash: the shell tool runs commands in it"),
    ("rg", "missing", "install ripgrep: it searches large trees faster"),
)
_KEYS = ("ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN")


def _program(name: str, otherwise: State, advice: str, environ: Mapping[str, str], workspace: Path) -> Finding:
    found = _which(name, environ, workspace)
    if found is None:
        return Finding(name, otherwise, "not on PATH", advice)
    try:
        ran = subprocess.run(
            [found, "--version"],
            capture_output=True,
            text=True,
            timeout=5,
            check=False,
            stdin=subprocess.DEVNULL,
            cwd="/",
        )
    except (OSError, subprocess.TimeoutExpired) as failed:
        return Finding(name, otherwise, f"{found} does not run: {failed}", advice)
    return Finding(name, "found", (ran.stdout or ran.stderr).partition("\n")[0].strip()[:80])


def _which(name: str, environ: Mapping[str, str], workspace: Path) -> str | None:
    """The program's absolute path; what lies in the workspace is not run."""
    folders = [Path(one) for one in environ.get("PATH", os.defpath).split(os.pathsep)]
    outside = [one for one in folders if one.is_absolute() and not one.resolve().is_relative_to(workspace.resolve())]
    return shutil.which(name, path=os.pathsep.join(map(str, outside)))


def _key(environ: Mapping[str, str]) -> Finding:
    named = [name for name in _KEYS if environ.get(name)]
    if named:
        return Finding("key", "found", f"{named[0]} is set (not tried)")
    advice = f"set {' or '.join(_KEYS)}; --model rehearsal:FILE and `callboard demo` need none"
    return Finding("key", "missing", "no key for the model service", advice)


def _terminal(environ: Mapping[str, str]) -> Finding:
    kind = environ.get("TERM", "")
    if not sys.stdin.isatty() or not sys.stdout.isatty():
        return Finding("terminal", "missing", "none here", "the prompt line needs one; `callboard run` does not")
    if kind in {"", "dumb"}:
        return Finding(
            "terminal", "missing", f"TERM is {kind or 'not set'}", "set TERM for colours and the prompt line"
        )
    return Finding("terminal", "found", kind)


def examine_sandbox(loaded: Loaded, workspace: Path, environ: Mapping[str, str]) -> Finding:
    """The level in force for a session with a person, and what it does not stop. Tries bubblewrap once."""
    machine = examine(workspace, environ)
    try:
        choice = choice_of(loaded, machine, attended=True)
    except SettingsError as error:
        return Finding("sandbox", "broken", str(error), "docs/sandbox.md tells what each level needs")
    alone = choice_of(loaded, machine, attended=False)
    network = "the machine's network is open" if choice.network else _NETWORK[choice.level]
    without = "; where nobody is there no command runs" if alone.refusal else ""
    detail = f"level {choice.level}: {_WALLS[choice.level]}; {network}{without}"
    reason = "" if choice.level >= 2 else f"{machine.reason(2) or 'sandbox.level is set'}. "
    open_ = f"it does not stop: {_OPEN[choice.level]}"
    if choice.level >= 2:
        return Finding("sandbox", "found", f"{detail}; {open_}")
    return Finding("sandbox", "missing", detail, f"{reason}{open_[0].upper()}{open_[1:]}")


_WALLS = (
    "commands run with your rights, without your keys, and are ended with all that they start",
    "commands change their folder only and cannot read credentials (Landlock, seccomp)",
    "commands change their folder only, see no home and no other process (bubblewrap)",
    "commands change their folder only, see no home and no other process (bubblewrap)",
)
_NETWORK = ("the machine's network is open", "no network", "no network", "the allowed hosts only")
_OPEN = (
    "a command that was allowed from reading your files, changing them, using the network",
    "writes to files of the workspace that other tools run (.git/hooks, .mcp.json); changes of permission bits outside",
    "protected names in deeper folders; use of disk and processor within the limits; faults of the kernel",
    "what is sent to allowed hosts; protected names in deeper folders; use of disk and processor; faults of the kernel",
)

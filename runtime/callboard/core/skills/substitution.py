r"""Texts of skills: slash commands that start a message, their arguments, and the replacement of placeholders. Pure.

Commands in the text are replaced as well.

    $ARGUMENTS      everything after the name, as it was typed
    $ARGUMENTS[1]   one argument, counted from 0 and split as a shell splits; a missing one stays as written
    $1              the same, if no letter, digit or underscore follows: `$1k` and `$100 000` stay as written
    $issue          one that the front matter names (`arguments: [issue, branch]`); a missing one is empty
    ${CLAUDE_...}   a value of the session; an unknown one stays as written
    \$1             a literal dollar, before any of these; `\\$1` is two backslashes and the argument

All replacements happen in one pass: inserted text is never substituted again. If arguments are given and no placeholder
uses one, they are appended in a last line `ARGUMENTS: ...` (docs/skills.md).

Commands are replaced by their output: `` !`git diff` `` at the beginning of a line or after a space, and fences that
open with ```` ```! ````. They are found in the text as its author wrote it, with its arguments inserted. Output of a
command is never searched again.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import field
from difflib import get_close_matches
from types import MappingProxyType
from typing import cast

from callboard.types.late_pattern import late_pattern
from callboard.types.lazy_dataclass import dataclass

_NAME = late_pattern(r"[A-Za-z_][A-Za-z0-9_-]*")
_WHOLE = "ARGUMENTS"


def split_arguments(text: str) -> tuple[str, ...]:
    """Return the arguments of a line, split as by a shell; only at spaces if a quote is not closed."""
    try:
        return tuple(shlex.split(text))
    except ValueError:
        return tuple(text.split())


@dataclass(slots=True)
class _Filling:
    """Substitution of one text."""

    arguments: str
    names: Sequence[str]
    variables: Mapping[str, str]
    words: tuple[str, ...] = ()
    taken: bool = field(default=False)
    """True if a placeholder used an argument, or all of them."""

    def place(self, match: re.Match[str]) -> str:
        written = match[0]
        was_taken = self.taken
        value = self._value(match)
        if not written.startswith("\\"):
            return written if value is None else value
        self.taken = was_taken
        return written[1:] if value is not None or match["index"] or match["number"] else written

    def _value(self, match: re.Match[str]) -> str | None:
        """Return the value of a placeholder; None: it stays as written."""
        if match["variable"] is not None:
            return self.variables.get(match["variable"])
        if match["name"] is not None:
            return self._word(self.names.index(match["name"])) or ""
        index = match["index"] or match["number"]
        if index is not None:
            return self._word(int(index))
        self.taken = True
        return self.arguments

    def _word(self, place: int) -> str | None:
        if place >= len(self.words):
            return None
        self.taken = True
        return self.words[place]


def _places(names: Sequence[str]) -> re.Pattern[str]:
    """Return the pattern of placeholders, longest names first.

    The order ensures that `$issue` does not match a part of `$issue-number`.
    """
    alternatives = sorted((re.escape(name) for name in names), key=len, reverse=True)
    named = f"|(?P<name>{'|'.join(alternatives)})(?![A-Za-z0-9_])" if alternatives else "|(?P<name>(?!))"
    index = r"ARGUMENTS\[(?P<index>\d{1,6})\]|(?P<whole>ARGUMENTS)"
    return re.compile(
        rf"(?:(?<!\\)\\)?\$(?:{index}|(?P<number>\d{{1,6}})(?![A-Za-z0-9_])|\{{(?P<variable>[A-Z][A-Z0-9_]*)\}}{named})"
    )


def fill_placeholders(
    body: str, arguments: str = "", names: Sequence[str] = (), variables: Mapping[str, str] | None = None
) -> tuple[str, bool]:
    """Return the text with all substitutions, and True if a placeholder used an argument.

    Also True if there were no arguments.
    """
    filling = _Filling(arguments, names, variables or {}, split_arguments(arguments))
    text = _places(names).sub(filling.place, body)
    return text, filling.taken or not arguments.strip()


def with_arguments(text: str, arguments: str) -> str:
    """Return the text with the arguments that no placeholder used."""
    return f"{text.rstrip()}\n\nARGUMENTS: {arguments}"


def argument_names(written: object) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the argument names from a front matter, and the invalid ones.

    The front matter has a list, or words separated by spaces or commas.
    """
    listed = isinstance(written, list | tuple)
    items = cast("Sequence[object]", written) if listed else str(written or "").replace(",", " ").split()
    names = tuple(str(name).strip() for name in items)
    good = tuple(name for name in names if _NAME.fullmatch(name) and name != _WHOLE)
    return good, tuple(name for name in names if name not in good)


LONGEST = 120.0
"""Maximum seconds of one command (Claude Code's own limit)."""
SEARCHES = frozenset(
    {"grep", "egrep", "fgrep", "zgrep", "rg", "ag", "ack", "diff", "cmp", "comm", "test", "[", "find", "pgrep", "which"}
)
"""Programs whose exit code 1 means that nothing was found, or that two inputs differ."""
_GIT_SEARCHES = frozenset({"grep", "diff"})
_SEPARATORS = frozenset({"|", "||", "&&", ";", "&", "|&"})
_COMMAND = late_pattern(
    r"^(?P<indent>[ \t]*)```!\s*?\n(?P<block>.*?)\n?^[ \t]*```[ \t]*$|(?:(?<=\s)|^)!`(?P<line>[^`\n]+)`",
    re.MULTILINE | re.DOTALL,
)


@dataclass(frozen=True, slots=True)
class CommandInText:
    """One command, and its position in the text."""

    command: str
    start: int
    end: int


def commands_in(text: str) -> tuple[CommandInText, ...]:
    """Return the commands of a text, in order. Empty commands are skipped."""
    commands = (
        CommandInText((match["line"] or match["block"] or "").strip(), *match.span())
        for match in _COMMAND.finditer(text)
    )
    return tuple(command for command in commands if command.command)


def with_outputs(text: str, commands: Sequence[CommandInText], outputs: Sequence[str]) -> str:
    """Return the text with each command replaced by its output."""
    parts = list[str]()
    at = 0
    for command, output in zip(commands, outputs, strict=True):
        parts += [text[at : command.start], output.rstrip("\n")]
        at = command.end
    return "".join([*parts, text[at:]])


def exit_counts(command: str, code: int | None) -> bool:
    """Return True if this exit code of the command means a failure."""
    if code == 0:
        return False
    return code != 1 or not _searches(command)


def _searches(command: str) -> bool:
    """Return True if the last program of the line searches or compares."""
    try:
        lexer = shlex.shlex(command, posix=True, punctuation_chars=True)
        lexer.whitespace_split = True
        tokens = list(lexer)
    except ValueError:
        return False
    start = max((place for place, word in enumerate(tokens) if word in _SEPARATORS), default=-1) + 1
    last = [word for word in tokens[start:] if "=" not in word or word.startswith("-")]
    if not last:
        return False
    program = last[0].rsplit("/", 1)[-1]
    if program == "git":
        return bool(_GIT_SEARCHES & set(last[1:3]))
    return program in SEARCHES


MOST_STACKED = 6
"""Maximum number of skills at the start of one message (Claude Code's own limit)."""
_ROOT_FOLDERS = frozenset(
    (
        *("Applications", "Library", "System", "Users", "Volumes", "bin", "boot", "dev", "etc", "home", "lib", "lib64"),
        *("media", "mnt", "nix", "opt", "private", "proc", "root", "run", "sbin", "snap", "srv", "sys", "tmp", "usr"),
        "var",
    )
)
"""Folders at the root of Linux and macOS: a person may begin a sentence with one."""
_NAMED = late_pattern(r"/(?P<name>\w[\w.:@-]*)(?=\s|\Z)")


@dataclass(frozen=True, slots=True)
class TypedCommands:
    """The commands at the start of a message, and the text after them."""

    names: tuple[str, ...]
    arguments: str


def typed_commands(text: str, is_command: Callable[[str], bool]) -> TypedCommands | None:
    """Return the known commands that a message begins with, at most `MOST_STACKED`; None if there are none.

    A following word that is not a command (`/etc/hosts`) begins the arguments. Each command counts once.
    """
    at = _blanks(text, 0)
    names = list[str]()
    while len(names) < MOST_STACKED:
        match = _NAMED.match(text, at)
        if match is None or not is_command(match["name"]):
            break
        if match["name"] not in names:
            names.append(match["name"])
        at = _blanks(text, match.end())
    return TypedCommands(tuple(names), text[at:].strip()) if names else None


def first_name(text: str) -> str:
    """Return the name of the command that a message begins with, known or not; empty for any other message.

    A path (`/etc/hosts is wrong`) is not a command, nor is the name of a folder at the root (`/tmp is full`).
    """
    at = _blanks(text, 0)
    match = _NAMED.match(text, at) if text.startswith("/", at) else None
    return "" if match is None or match["name"] in _ROOT_FOLDERS else match["name"]


_SIGN_IN = "Callboard has no sign-in: set ANTHROPIC_API_KEY or ANTHROPIC_AUTH_TOKEN, and see `callboard doctor`"
_SCREEN = "The terminal's own settings decide"

_MISSING_COMMANDS: Mapping[str, str] = MappingProxyType(
    {
        # Commands of the prompt line, which a run has not
        "agents": "`callboard agents` lists the agent types",
        "clear": "A run begins an empty conversation unless you give -c or --resume",
        "compact": "Use `callboard -c -p /compact`, or /compact at the prompt line",
        "config": "Use `callboard config`",
        "context": "Use `callboard context`",
        "cost": "Use `callboard cost`",
        "help": "Use `callboard --help`",
        "inbox": "Use `callboard inbox`",
        "mcp": "Use `callboard mcp list`",
        "mode": "Use --permission-mode MODE",
        "model": "Use --model NAME",
        "permissions": "Use `callboard policy rules`",
        "plans": "Use `callboard plans`",
        "resume": "Use --resume ID; `callboard sessions` lists the sessions",
        "status": "Use `callboard team` and `callboard doctor`",
        "tasks": "Use `callboard tasks`",
        "team": "Use `callboard team`",
        # Commands of Claude Code
        "add-dir": "Start with --add-dir DIR, or add the folder: `callboard config add permission.directories DIR`",
        "allowed-tools": "/permissions lists the rules; `callboard config add permission.allow RULE` adds one",
        "bashes": "/team shows who is at work; an agent stops the commands that it started",
        "bug": "Report faults in the issue tracker of Callboard",
        "branch": "`callboard run --resume ID --fork-session` continues in a copy of the session",
        "doctor": "Use `callboard doctor`",
        "export": "`callboard sessions` names the session; its transcript is in ~/.claude/projects",
        "feedback": "Report faults in the issue tracker of Callboard",
        "fork": "`callboard run --resume ID --fork-session` continues in a copy of the session",
        "hooks": "`callboard doctor --compat` lists the hooks and their files",
        "ide": "No editor is connected",
        "init": 'Ask for it in words: "Write an AGENTS.md for this project"',
        "login": _SIGN_IN,
        "logout": _SIGN_IN,
        "output-style": "Use `callboard config set output_style NAME`; new sessions use it",
        "plan": "Use /mode plan, or start with --permission-mode plan",
        "plugin": "Use `callboard plugin`",
        "pr-comments": 'Ask for it in words: "Read the comments of pull request 12"',
        "reload-plugins": "Plugins are loaded when a session begins: /new begins another conversation",
        "rename": "Name the session at its start: -n NAME",
        "review": 'Ask for it in words: "Review my changes"; a file .claude/commands/review.md makes it a command',
        "rewind": "`git` undoes changes of files; /context undo N restores what was cut from the conversation",
        "checkpoint": "`git` undoes changes of files; /context undo N restores what was cut from the conversation",
        "sandbox": "`callboard config set sandbox.level N` chooses the level; /status shows it",
        "security-review": 'Ask for it in words: "Review my changes for security faults"',
        "skills": "Use `callboard skills`",
        "stats": "Use /cost, or `callboard cost`",
        "statusline": "Use `callboard config set status_line.command COMMAND`",
        "terminal-setup": "Alt-Enter, or Enter after a backslash, begins a new line in every terminal",
        "theme": _SCREEN,
        "todos": "Use /tasks",
        "upgrade": "Use `callboard update`",
        "usage": "Use /cost, or `callboard cost`",
        "vim": "The line has the keys of Emacs and readline",
    }
)
"""Slash command that people know from the prompt line or from Claude Code -> what to do where it does not exist. The
prompt line has the first ones itself, so that only runs miss them."""


def unknown_command(name: str, command_names: Collection[str]) -> str:
    """Return the message for a command that does not exist: what to do instead, or the nearest names."""
    if name in _MISSING_COMMANDS and name not in command_names:
        return f"there is no command /{name} here. {_MISSING_COMMANDS[name]}"
    names = sorted(set(command_names))
    last = name.rpartition(":")[2].lower()
    alike = [name for name in names if name.rpartition(":")[2].lower() == last]
    near = list(dict.fromkeys((*alike, *get_close_matches(name, names, n=3, cutoff=0.6))))[:3]
    hint = f" Did you mean {' or '.join(f'/{other}' for other in near)}?" if near else ""
    return f"there is no command /{name}.{hint} To send it to the model unchanged, begin with a backslash: \\/{name}"


def untrusted_command(name: str, *, effect: str = "it did not run") -> str:
    """Return the message for a command of a workspace that is not trusted. `effect`: what that means here."""
    return (
        f"/{name} is a command of this workspace, and nobody has trusted the workspace's content: {effect}. "
        "`callboard trust` shows the content and asks"
    )


def _blanks(text: str, at: int) -> int:
    while at < len(text) and text[at].isspace():
        at += 1
    return at

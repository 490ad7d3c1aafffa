"""Commands and paths made from the tables of cases by taking apart, quoting, wrapping, nesting and joining them."""

from __future__ import annotations

import random
import shlex
from collections.abc import Callable, Sequence
from pathlib import Path

CASES = Path(__file__).parent / "permission_cases"
ODD = [
    "\t",
    "\r",
    "\u00a0",
    "\u200b",
    "\u202e",
    "\ufeff",
    "\x1b",
    "\\",
    "'",
    '"',
    "`",
    "$",
    "{",
    "}",
    "#",
    "~",
    "\n",
    "=",
    "é",
]
WORDS = [
    "rm",
    "-rf",
    "/",
    "--",
    "-c",
    "-exec",
    ";",
    "|",
    "&&",
    "&",
    "||",
    ">",
    "<",
    "2>&1",
    "<<<",
    "$X",
    "*",
    "{}",
    "{a,b}",
]
WRAPPERS = [
    *("timeout 5 {}", "nice {}", "nohup {}", "env {}", "env LC_ALL=C {}", "command {}", "time {}", "stdbuf -oL {}"),
    *("setsid {}", "exec {}", "busybox {}", "xargs {}", "nice -n 5 timeout 5 {}", "X=1 {}", "LC_ALL=C {}", "! {}"),
]
NESTS = [
    *("({})", "{{ {}; }}", "$({})", 'echo "$({})"', "cat <({})", "echo `{}`", "if {}; then ls; fi", "f() {{ {}; }}; f"),
    *("for i in 1; do {}; done", "case x in x) {};; esac", "[[ -n $({}) ]]", "echo ${{X:-$({})}}", 'cat <<< "$({})"'),
    *("cat <<E\n$({})\nE", "echo $(( $({}) ))", "ls > >({})", "while {}; do ls; done", "(({}))", "coproc {}"),
    *("[[ x == @(y|$({})) ]]", "cat <<E\nx\nE\\\n\n{}\nE", "cat <<E\n${{X:-\nE\n{}\n}}\nE", "$(cat <<E\nE{} )\nE\n)"),
]
TEXTS = ["sh -c {}", "bash -c {}", "eval {}", "echo {} | sh", "bash <<< {}", "trap {} EXIT", "env -S {}", "dash -c {}"]
JOINS = ["; ", " && ", " || ", " | ", " & ", "\n", " |& ", ";", "|"]


def table(decision: str) -> list[str]:
    """The commands of one table."""
    return [line for line in (CASES / f"{decision}.txt").read_text().split("\n") if line]


def every_case() -> list[str]:
    """The commands of all tables."""
    return [line for decision in ("allow", "ask", "deny") for line in table(decision)]


def mutant(draw: random.Random, cases: Sequence[str]) -> str:
    """One command that is one to three changes away from a case."""
    command = draw.choice(cases)
    for _ in range(draw.randint(1, 3)):
        command = draw.choice(_CHANGES)(draw, command, cases)
    return command


def _insert(draw: random.Random, command: str, cases: Sequence[str]) -> str:
    words = command.split(" ")
    words.insert(draw.randint(0, len(words)), draw.choice([*WORDS, *draw.choice(cases).split(" ")]))
    return " ".join(words)


def _delete(draw: random.Random, command: str, cases: Sequence[str]) -> str:
    words = command.split(" ")
    del words[draw.randrange(len(words))]
    return " ".join(words)


def _swap(draw: random.Random, command: str, cases: Sequence[str]) -> str:
    words = command.split(" ")
    a, b = draw.randrange(len(words)), draw.randrange(len(words))
    words[a], words[b] = words[b], words[a]
    return " ".join(words)


def _spell(draw: random.Random, command: str, cases: Sequence[str]) -> str:
    words = command.split(" ")
    at = draw.randrange(len(words))
    words[at] = draw.choice(_SPELLINGS)(words[at])
    return " ".join(words)


def _odd(draw: random.Random, command: str, cases: Sequence[str]) -> str:
    at = draw.randint(0, len(command))
    return command[:at] + draw.choice(ODD) + command[at:]


def _cut(draw: random.Random, command: str, cases: Sequence[str]) -> str:
    at = draw.randint(0, len(command))
    return command[:at] + command[at + draw.randint(1, 3) :]


def _join(draw: random.Random, command: str, cases: Sequence[str]) -> str:
    sides = [command, draw.choice(cases)]
    draw.shuffle(sides)
    return draw.choice(JOINS).join(sides)


_SPELLINGS: list[Callable[[str], str]] = [
    shlex.quote,
    lambda word: f'"{word}"',
    lambda word: f"'{word}'",
    lambda word: "".join(f"\\{c}" if c.isalpha() else c for c in word),
    lambda word: "$'" + "".join(f"\\x{ord(c) & 127:02x}" for c in word) + "'",
    lambda word: word[:1] + "''" + word[1:],
    lambda word: word[:1] + "\\\n" + word[1:],
    lambda word: "{" + word + ",}",
    lambda word: word[:1] + "*",
]
_CHANGES: list[Callable[[random.Random, str, Sequence[str]], str]] = [
    *(_insert, _delete, _swap, _spell, _spell, _odd, _cut, _join, _join),
    lambda draw, command, _: draw.choice(WRAPPERS).format(command),
    lambda draw, command, _: draw.choice(NESTS).format(command),
    lambda draw, command, _: draw.choice(TEXTS).format(shlex.quote(command)),
]

PATHS = [
    *("README.md", "src/a.py", ".env", "src/../.env", "../state/db", "/etc/passwd", "link/x", "link", "~/.ssh/id_rsa"),
    *(".git/config", "/proc/self/environ", "src", ".", "..", "./src//a.py", "new.txt", "src/new/../../..", "id_rsa"),
]
PIECES = [
    "..",
    ".",
    "/",
    "//",
    "~",
    "src",
    "link",
    ".env",
    ".ENV",
    "\0",
    "\u202e",
    "a" * 300,
    "é",
    "*",
    "README.md",
    "\n",
]


def mutated_path(draw: random.Random, root: str) -> str:
    """One path that is some changes away from one that means something."""
    parts = draw.choice(PATHS).split("/")
    for _ in range(draw.randint(0, 4)):
        parts.insert(draw.randint(0, len(parts)), draw.choice(PIECES))
        if draw.random() < 0.3:
            del parts[draw.randrange(len(parts))]
    text = "/".join(parts)
    return draw.choice([text, text, f"{root}/{text}", f"{root}-other/{text}", f"{root}/src/../{text}"])

"""Words of shell commands made to mislead: names of files spelled by globs, braces, quotes and parameters.

`bash_words` lets bash itself expand them. The words hold no substitution and no redirect, so nothing is run or written.
"""

from __future__ import annotations

import random
import shlex
import shutil
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path

FILES = (
    *(".env", ".env.local", ".envrc", ".e", "env", "README.md", "a.py", "b.py", "id_rsa", "id_rsa.pub", "-x", "x y"),
    *("src/a.py", "src/b.md", "src/.env", "keys/server.pem", "keys/server.txt", "v", "V", "[v]", "{a,b}", "a-b", "a^b"),
)
TARGETS = (
    ".env",
    ".env",
    "id_rsa",
    "keys/server.pem",
    "src/.env",
    ".env.local",
    "src/a.py",
    "README.md",
    "a.py",
    "src/b.md",
)
EMPTY = (
    "$!",
    "$@",
    "$*",
    "$1",
    "$9",
    "${x}",
    "$x",
    "${x:-}",
    "${x[0]}",
    "${#}",
    "''",
    '""',
    "\\\n",
    "$'' ",
    "${@}",
    "${x[@]}",
)
PARAMETERS = (
    *("$?", "$$", "$#", "$-", "$_", "$0", "${x:-v}", "${x:+v}", "${#x}", "${!x}", "${x/a/b}", "${x:=v}", "$((1+1))"),
    *(
        "$((0))",
        "$((x))",
        "$[1]",
        "$HOME",
        "$PWD",
        "${PWD##*/}",
        "${IFS}",
        "$RANDOM",
        "$LINENO",
        "$BASH",
        "${x^^}",
        "${x@Q}",
    ),
)
_SETS = (
    "[[:lower:]]",
    "[[:alpha:]]",
    "[^xX]",
    "[!x]",
    "[^[:upper:]]",
    "[[:punct:][:alnum:]]",
    "[!-~]",
    "[[=e=]]",
    "[[:graph:]]",
)


def spelled(draw: random.Random, name: str) -> str:
    """Return a word that bash may expand to `name`: some of its characters are written in another way."""
    out = ""
    for char in name:
        way = draw.random()
        if char == "/" or way < 0.45:
            out += char
        else:
            out += draw.choice(_SPELLINGS)(draw, char)
        if draw.random() < 0.04:
            out += draw.choice(EMPTY)
    return out


def word(draw: random.Random) -> str:
    """Return a misleading word: a name in another spelling, with noise."""
    out = spelled(draw, draw.choice(TARGETS))
    for _ in range(draw.choice((0, 0, 0, 1, 2))):
        at = draw.randint(0, len(out))
        noise = draw.choice(
            (*EMPTY, *PARAMETERS, *_SETS, "*", "?", "[", "]", "{", "}", ",", "!", "^", "\\", "~", "=", ":", ".", "..")
        )
        out = out[:at] + noise + out[at:]
    return draw.choice(
        (out, out, out, out, "./" + out, "~+/" + out, f"{{{out},a.py}}", f"x=~/{out}", f"src/../{out}", f"*/{out}")
    )


def _one_set(draw: random.Random, char: str) -> str:
    body = draw.choice(
        (
            char,
            f"{char}x",
            f"x{char}",
            f"'{char}'x",
            f'"{char}"',
            f"\\{char}",
            f"]{char}",
            f"{char}\\]",
            f"a-z{char}",
            f"{char}-",
        )
    )
    return f"[{body}]"


def _range(draw: random.Random, char: str) -> str:
    if not char.isalnum():
        return f"{{{char},x}}"
    low, high = chr(ord(char) - draw.randint(0, 2)), chr(ord(char) + draw.randint(0, 2))
    return draw.choice((f"{{{low}..{high}}}", f"{{{high}..{low}}}", f"[{low}-{high}]", f"{{{low}..{high}..1}}"))


_SPELLINGS: Sequence[Callable[[random.Random, str], str]] = (
    lambda draw, char: "?",
    lambda draw, char: "*",
    lambda draw, char: draw.choice(_SETS),
    _one_set,
    _one_set,
    _range,
    lambda draw, char: f"'{char}'",
    lambda draw, char: f'"{char}"',
    lambda draw, char: f"\\{char}",
    lambda draw, char: f"$'\\x{ord(char):02x}'",
    lambda draw, char: f"$'{char}'",
    lambda draw, char: f"{{{char},z}}",
    lambda draw, char: f"{{{char},{{{char},}}}}",
    lambda draw, char: f"${{x:-{char}}}",
    lambda draw, char: char.swapcase(),
)

_PRINTF = (
    "%",
    "%",
    "%",
    "l",
    "n",
    "n",
    "s",
    "d",
    "*",
    ".",
    "5",
    "-",
    "(",
    ")",
    "%Y",
    "T",
    "b",
    "q",
    "Q",
    "h",
    "j",
    "z",
    "t",
    "L",
    "c",
    "\\x25",
    "\\045",
    "\\",
    "'",
    "#",
    "0",
    " ",
    "$",
    "1$",
    "v",
    "x",
)


def printf_format(draw: random.Random) -> str:
    """Return a format of `printf`, most of them odd."""
    return "".join(draw.choice(_PRINTF) for _ in range(draw.randint(1, 7)))


def make_files(folder: Path) -> None:
    """Put the files that the words are about into a folder."""
    for name in FILES:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("x")


def bash_words(words: Sequence[str], folder: Path, home: str) -> list[list[str] | None]:
    """Return what bash makes of each word in `folder`, or None for one that is no valid word."""
    lines = [f"(eval {shlex.quote(_PRINT + each)}) 2>/dev/null && printf '\\2'; printf '\\1'" for each in words]
    out = _bash(lines, folder, home).split("\1")[:-1]
    assert len(out) == len(words)
    return [each.removesuffix("\2").split("\0")[1:-1] if each.endswith("\2") else None for each in out]


def assigning_formats(formats: Sequence[str], folder: Path, home: str) -> list[bool]:
    """Return for each format of `printf` whether bash changes the variable that its arguments name."""
    lines = [
        f"x=same; printf {shlex.quote(each)} x x x x >/dev/null 2>&1; "
        "[ \"$x\" = same ] && printf 'no ' || printf 'yes '"
        for each in formats
    ]
    return [each == "yes" for each in _bash(lines, folder, home).split()]


_PRINT = "printf '%s\\0' '' "


def _bash(lines: Sequence[str], folder: Path, home: str) -> str:
    bash = shutil.which("bash")
    assert bash is not None
    done = subprocess.run(
        [bash, "--norc", "--noprofile"],
        input="\n".join(lines) + "\n",
        capture_output=True,
        text=True,
        errors="surrogateescape",
        cwd=folder,
        env={"PATH": "/usr/bin:/bin", "HOME": home},
        timeout=300,
        check=True,
    )
    return done.stdout

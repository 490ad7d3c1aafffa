"""What a shell is told to run, where that is literal: `sh -c TEXT`, a heredoc, a here-string, `echo TEXT | sh`."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from callboard.core.permission.commands import names
from callboard.core.permission.effects import Does
from callboard.core.permission.values import Node, Simple
from callboard.core.permission.words import Arg, expand, literal

_BASH_LIKE = names("sh bash dash ash")
_HARMLESS_LONG = names("--norc --noprofile --posix --restricted")


@dataclass(frozen=True, slots=True)
class ShellScript:
    """The literal script of a shell, if there is one, and effects beyond it."""

    script: str | None
    effects: tuple[Does, ...] = ()


def script_of_shell(shell: str, args: Sequence[Arg], stdin: str | None) -> ShellScript:
    """Return what the shell runs. What is not literal, or not bash's grammar, asks."""
    unknown = Does("L", f"what `{shell}` runs is only known when it runs", "person")
    foreign = () if shell in _BASH_LIKE else (Does("X", f"`{shell}` has a grammar of its own"),)
    whole = len(args)
    args = args[: next((i for i, arg in enumerate(args) if not arg.known), whole)]
    given, at, odd = _shell_options([arg.text for arg in args])
    effects = [*foreign, *(Does("X", f"`{shell} {text}` may run more than its script") for text in odd)]
    if not (given and at < len(args)) and len(args) < whole:
        return ShellScript(None, (unknown,))
    if given:
        return ShellScript(args[at].text, tuple(effects)) if at < len(args) else ShellScript(None, tuple(effects))
    if at < len(args) and "s" not in "".join(arg.text for arg in args[:at] if arg.text[:1] == "-"):
        return ShellScript(None, (*effects, Does("X", f"`{shell}` runs a script file")))
    if stdin is None:
        return ShellScript(None, (*effects, Does("X", f"`{shell}` runs what it reads")))
    if "\\" in stdin:  # shells differ on what `echo` makes of escapes: deny by one reading, never allow by it
        effects.append(Does("X", f"what `{shell}` reads holds escapes"))
    return ShellScript(stdin, tuple(effects))


def _shell_options(texts: Sequence[str]) -> tuple[bool, int, list[str]]:
    """Return whether a script is given by `-c`, where the operands begin, and the options that may do more."""
    given, at, odd = False, 0, list[str]()
    while at < len(texts) and re.match(r"[-+].", texts[at]):
        text = texts[at]
        at += 1
        if text == "--":
            break
        if text.startswith("--"):
            odd += [] if text in _HARMLESS_LONG else [text]
            continue
        given |= text[0] == "-" and "c" in text
        at += sum(text.count(letter) for letter in "oO")
        odd += [text] if set(text[1:]) - set("ceuxvnsfoOpabhmB") else []
    return given, at, odd


def text_of(node: Node, home: str) -> str | None:
    """Return what a stage of a pipe prints, where that is literal."""
    if not isinstance(node, Simple):
        return None
    args = [arg for word in node.words for arg in expand(word, home)]
    if not args or not all(arg.known for arg in args) or any(r.op[0] in ">&" for r in node.redirects):
        return None
    name, texts = args[0].text, [arg.text for arg in args[1:]]
    if name == "cat" and not texts:
        bodies = [literal(r.target, home) for r in node.redirects if r.op in ("<<", "<<<")]
        return bodies[-1].text if bodies and bodies[-1].known else None
    if name == "echo":
        return _echo(texts)
    if name == "printf" and texts:
        return _printf(texts)
    return None


def _echo(texts: list[str]) -> str | None:
    while texts and re.fullmatch(r"-[neE]+", texts[0]):
        texts.pop(0)
    return " ".join(texts) + "\n"


def _printf(texts: list[str]) -> str | None:
    form = texts[0].replace("\\n", "\n").replace("\\t", "\t")
    if "\\" in form:
        return None
    if "%" not in form:
        return form
    if form.count("%") == form.count("%s") == 1:
        return "".join(form.replace("%s", text) for text in texts[1:])
    return None

"""What a shell is told to run, where that is literal: `sh -c TEXT`, a heredoc, a here-string, `echo TEXT | sh`."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from callboard.core.permission.commands import names
from callboard.core.permission.effects import Does
from callboard.core.permission.never import name_of, walk
from callboard.core.permission.values import Node, Redirect, Script, Simple
from callboard.core.permission.words import Arg, expand, literal

_BASH_LIKE = names("sh bash dash ash")
_NOT_BASH = re.compile(r"\[\[\s|\$'")
"""Where other shells see words and operators: `[[ a || b ]]` and `$'a\\'` end elsewhere for them."""
_NO_INPUT = names("ls pwd echo printf cd true false test [ date whoami id uname hostname which type basename dirname :")
_HARMLESS_LONG = names("--norc --noprofile --posix --restricted")


@dataclass(frozen=True, slots=True)
class ShellScript:
    """The literal script of a shell, if there is one, and effects beyond it."""

    script: str | None
    effects: tuple[Does, ...] = ()
    from_input: bool = False
    """The shell reads it while its commands run, and they read from the same place."""


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
    script = args[at].text if given and at < len(args) else stdin or ""
    if shell != "bash" and _NOT_BASH.search(script):
        effects.append(Does("L", f"`{shell}` may read this script in another way"))
    if given:
        return ShellScript(args[at].text, tuple(effects)) if at < len(args) else ShellScript(None, tuple(effects))
    if at < len(args) and "s" not in "".join(arg.text for arg in args[:at] if arg.text[:1] == "-"):
        return ShellScript(None, (*effects, Does("X", f"`{shell}` runs a script file")))
    if stdin is None:
        return ShellScript(None, (*effects, Does("X", f"`{shell}` runs what it reads")))
    if "\\" in stdin:  # shells differ on what `echo` makes of escapes: deny by one reading, never allow by it
        effects.append(Does("X", f"what `{shell}` reads holds escapes"))
    return ShellScript(stdin, tuple(effects), from_input=True)


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


def stdin_of(redirects: Sequence[Redirect], home: str, piped: str | None) -> str | None:
    """Return the text that a command reads, where it is known: the last redirect of descriptor 0 counts."""
    for redirect in redirects:
        if redirect.op in ("<<", "<<<") and redirect.descriptor in ("", "0"):
            body = literal(redirect.target, home)
            piped = body.text if body.known else None
        elif redirect.descriptor == "0" or (redirect.op.startswith("<") and redirect.descriptor == ""):
            piped = None
    return piped


def text_of(node: Node, home: str, piped: str | None) -> str | None:
    """Return what a stage of a pipe prints, where that is literal. `piped` is what it is given."""
    if not isinstance(node, Simple):
        return None
    args = [arg for word in node.words for arg in expand(word, home)]
    if not args or not all(arg.known and not arg.glob for arg in args) or any(r.op[0] in ">&" for r in node.redirects):
        return None
    name, texts = args[0].text, [arg.text for arg in args[1:]]
    if (name == "cat" and texts in ([], ["-"])) or name == "tee":
        return stdin_of(node.redirects, home, piped)
    if name == "echo":
        return _echo(texts)
    if name == "printf":
        return _printf(texts[1:] if texts[:1] == ["--"] else texts)
    return None


def named_by(node: Node, home: str) -> tuple[Arg, ...]:
    """Return folders whose contents a stage of a pipe lists: what is fed to `xargs` lies beneath them."""
    if not isinstance(node, Simple):
        return ()
    args = [arg for word in node.words for arg in expand(word, home)]
    return tuple(arg for arg in args[1:] if arg.text[:1] not in "-") if args and args[0].text == "find" else ()


def shared_input(nodes: Iterable[Node]) -> bool:
    """Whether more than one command of these could take a part of the same input."""
    return sum(isinstance(node, Simple) for node in walk(nodes)) > 1


def reads_itself(script: Script) -> bool:
    """Whether a script that a shell reads from its input could lose lines to its own commands."""
    started = [node for node in walk(script.nodes) if isinstance(node, Simple) and node.words]
    names_ = [name_of(node.words[0]) for node in started]
    return len(names_) > 1 and not all(name in _NO_INPUT for name in names_)


def _echo(texts: list[str]) -> str | None:
    while texts and re.fullmatch(r"-[neE]+", texts[0]):
        texts.pop(0)
    return " ".join(texts) + "\n"


def _printf(texts: list[str]) -> str | None:
    if not texts:
        return None
    form = texts[0].replace("\\n", "\n").replace("\\t", "\t")
    if "\\" in form:
        return None
    if "%" not in form:
        return form
    if form.count("%") == form.count("%s") == 1:
        return "".join(form.replace("%s", text) for text in texts[1:])
    return None

"""Programs that carry a small language of their own: sed, awk, jq. What is not known to be harmless asks."""

from __future__ import annotations

import re
from collections.abc import Iterator

from callboard.core.permission import commands as table
from callboard.core.permission.effects import Does, Effect, delete, read, write
from callboard.core.permission.options import Command, end_of_options, reader_effects
from callboard.core.permission.words import Arg

_AWK_UNSAFE = re.compile(r"system|getline|ENVIRON|ARG|PROCINFO|SYMTAB|[|@]|print(?s:.*)>")
"""`>` compares where nothing was printed before it; `||` is taken out first."""
_JQ_UNSAFE = re.compile(
    r"(?<!\.)\benv\b|\.\.\s*env|\$ENV|\$__prog|\binclude\b|\bimport\b|input_filename|modulemeta|\bgetpath_env\b"
)
_SED_ADDRESS = r"(?:\d+|\$|\d+~\d+|/(?:\[\^?\]?[^\]/\n]*\]|[^/\\\n\[]|\\.)*/I?|\+\d+)"
_SED_SUBSTITUTE = (
    r"s(?P<d>[^\w\s\\\[])"
    r"(?:\[\^?\]?(?:(?!(?P=d))[^\]\n])*\]|(?!(?P=d))[^\\\n\[]|\\.)*(?P=d)"  # no delimiter inside brackets: seds differ
    r"(?:(?!(?P=d))[^\\\n]|\\.)*(?P=d)[gpiIM0-9]*"
)
_SED_ONE = re.compile(
    rf"\s*(?:{_SED_ADDRESS}(?:,{_SED_ADDRESS})?)?\s*!?\s*"
    rf"(?:\{{|\}}\s*(?:;|\n|$|(?=\}}))|(?:[pdqQ=nNDPhHgGxl]|{_SED_SUBSTITUTE})\s*(?:;|\n|$|(?=\}})))"
)
_SED_OPTION = re.compile(r"-([nErszu]*)(e|i.*)?|--(quiet|silent|posix|regexp-extended|in-place(?:=.*)?)")
_SED_EMPTIES = re.compile(r"\s*(?:1,\$)?\s*d\s*;?\s*")


def sed(command: Command) -> Iterator[Effect]:
    """Yield what a `sed` command does. Options and scripts that are not known to be harmless ask."""
    if not all(arg.known for arg in command.args):
        yield Does("L", "a word of `sed` is only known when it runs")
        return
    if any(arg.glob and arg.text[0] in "*?[-" for arg in command.args[: end_of_options(command.args)]):
        yield Does("P", "a glob can become an option or a script of `sed`", "bypass")
    words = _sed_words(command)
    if isinstance(words, Does):
        yield words
        return
    scripts, paths, in_place = words
    if not all(_sed_is_safe(script) for script in scripts):
        yield Does("X", "this `sed` script may run commands or write files")
    for path in paths:
        yield write(path) if in_place else read(path)
        if in_place and any(_SED_EMPTIES.fullmatch(script) for script in scripts):
            yield delete(path)


def _sed_words(command: Command) -> tuple[list[str], list[Arg], bool] | Does:
    """Return the scripts, the files, and whether they are changed in place."""
    scripts, paths, in_place = list[str](), list[Arg](), False
    pending = ended = False
    for arg in command.args:
        text = arg.text
        if pending:
            scripts.append(text)
            pending = False
        elif text == "--" and not ended:
            ended = True
        elif text.startswith("-") and len(text) > 1 and not ended:
            cluster = _SED_OPTION.fullmatch(text)
            if cluster is None or re.search(r"[/*]", text):  # a suffix of backups can lead elsewhere
                return Does("X", f"`sed {text}` is not an option that is known to be harmless")
            in_place |= (cluster[2] or "").startswith("i") or (cluster[3] or "").startswith("in-place")
            pending = cluster[2] == "e"
        else:
            paths.append(arg)
    if not scripts and paths:
        scripts.append(paths.pop(0).text)
    return scripts, paths, in_place


def _sed_is_safe(script: str) -> bool:
    """Whether the script is made of printing, deleting of lines and substitutions alone."""
    at = 0
    while at < len(script):
        match = _SED_ONE.match(script, at)
        if match is None or match.end() == at:
            return False
        at = match.end()
    return bool(script)


def awk(command: Command) -> Iterator[Effect]:
    """Yield what an `awk` command does."""
    words = list(command.args)
    if not all(arg.known for arg in words):
        yield Does("L", "a word of `awk` is only known when it runs")
        return
    while words and words[0].text.startswith("-"):
        option = words.pop(0).text
        if re.fullmatch(r"-F.+|-v\w+=.*", option, re.DOTALL):
            continue
        if option not in ("-F", "-v") or not words:
            yield Does("X", f"`awk {option}` is not an option that is known to be harmless")
            return
        words.pop(0)
    program = words.pop(0) if words else None
    if program and (program.glob or _AWK_UNSAFE.search(program.text.replace("||", ""))):
        yield Does("X", "this `awk` program may run commands, write files or show the environment")
    yield from (read(arg) for arg in words)


def jq(command: Command) -> Iterator[Effect]:
    """Yield what a `jq` command does."""
    yield from reader_effects(command, table.READERS["jq"])
    if any(_JQ_UNSAFE.search(arg.text) for arg in command.args):
        yield Does("O", "this `jq` program may show the environment or load other programs")

"""What a hook's command would start, looked up without starting it: programs and scripts that are not there.

Only what is written out is looked up; what is known when the command runs is not guessed.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from callboard.adapters.programs import find_program
from callboard.adapters.shell import BashParser
from callboard.core.permission.analysis import analyse
from callboard.core.permission.commands import SHELLS, names
from callboard.core.permission.values import Floor, Function, Group, Node, Pipeline, Script, Simple, Unparsed
from callboard.core.permission.words import Arg

MOST_ROUNDS = 4
"""Scripts inside scripts are followed this deep."""

_BUILTINS = names(
    ": . [ [[ alias bg bind break builtin caller cd command compgen complete compopt continue declare dirs disown echo "
    "enable eval exec exit export false fc fg getopts hash help history jobs kill let local logout mapfile popd printf "
    "pushd pwd read readarray readonly return set shift shopt source suspend test times trap true type typeset ulimit "
    "umask unalias unset wait"
)
_INTERPRETERS = SHELLS | names("python python3 node deno ruby perl php")
_SUFFIXES = (".sh", ".bash", ".py", ".js", ".mjs", ".cjs", ".ts", ".rb", ".pl", ".php")


def missing_programs(command: str, args: Sequence[str] | None, project: Path) -> Iterator[str]:
    """What is wrong with the command of a hook of this workspace, a sentence each; nothing when all of it is there.

    `args`: as in hook files, with them `command` is the program itself.
    """
    if args is not None:
        program, *rest = (_filled(word, project) for word in (command, *args))
        yield from _program(program, project)
        yield from _script(program, rest, project)
        return
    source = _filled(command, project)
    parser = BashParser()
    scripts = {source: parser.parse(source)}
    for _ in range(MOST_ROUNDS):
        scripts |= {inner: parser.parse(inner) for inner in analyse(source, scripts, str(Path.home()), Floor()).missing}
    for parsed in scripts.values():
        if isinstance(parsed, Unparsed):
            yield f"it cannot be read: {parsed.why}"
            return
    own = frozenset(
        name for script in scripts.values() if isinstance(script, Script) for name in _functions(script.nodes)
    )
    told: set[str] = set()
    for part in analyse(source, scripts, str(Path.home()), Floor()).parts:
        for view in part.views:
            told.update(_of_words(view.words, own, project))
    yield from sorted(told)


def _of_words(words: Sequence[Arg], own: frozenset[str], project: Path) -> Iterator[str]:
    if not words or not words[0].known or words[0].glob or words[0].text in _BUILTINS | own:
        return
    yield from _program(words[0].text, project)
    known = [word.text if word.known and not word.glob else "" for word in words[1:]]
    yield from _script(words[0].text, known, project)


def _program(program: str, project: Path) -> Iterator[str]:
    if "/" not in program:
        if program and find_program(program, Path("/nowhere")) is None:
            yield f"there is no program `{program}` on the PATH"
        return
    path = project / program
    if not path.is_file():
        yield f"there is no file {path}"
    elif not os.access(path, os.X_OK):
        yield f"{path} cannot be run: make it executable (chmod +x)"


def _script(program: str, args: Sequence[str], project: Path) -> Iterator[str]:
    """The script that an interpreter is given, where it is written out."""
    if program.rpartition("/")[2] not in _INTERPRETERS:
        return
    first = next((word for word in args if word == "" or not word.startswith("-") or word in ("-c", "-m", "-e")), "")
    if first.endswith(_SUFFIXES) and not (project / first).is_file():
        yield f"there is no file {project / first}"


def _filled(word: str, project: Path) -> str:
    for name in ("${CLAUDE_PROJECT_DIR}", "$CLAUDE_PROJECT_DIR"):
        word = word.replace(name, str(project))
    return word


def _functions(nodes: Sequence[Node]) -> Iterator[str]:
    for node in nodes:
        match node:
            case Function(name, body):
                yield name
                yield from _functions(body)
            case Pipeline(stages):
                yield from _functions(stages)
            case Group():
                yield from _functions(node.body)
            case Simple():
                continue

"""Hooks that are commands: one process per event, with JSON on its standard input and an exit code as its answer.

The process runs in the agent's folder, in the sandbox of agents' commands or with the user's rights (`hook_sandbox.py`
decides), in its own session, with an environment without credentials. After a timeout or a cancellation that whole
session is killed; processes that left it for another session are not found. Outside of the sandbox, a process that
remains after the hook's end continues, as such hooks expect, but the runtime does not wait for it.

The module also finds missing programs and scripts of a hook's command without starting it. It looks up only literal
names and does not guess values that are known only at run time.
"""

from __future__ import annotations

import json
import os
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field
from pathlib import Path
from subprocess import PIPE

import anyio
import anyio.to_thread
from anyio.abc import ByteReceiveStream, Process

from callboard.adapters.extensions.hook_sandbox import OPT_OUT, HookSandbox, outside_environment, starts_workspace_code
from callboard.adapters.processes.pids import kill_session
from callboard.adapters.processes.programs import clean_environment, find_program
from callboard.adapters.shell.parser import BashParser
from callboard.adapters.system.open_files import give_back
from callboard.core.hooks.output import output_meaning
from callboard.core.permissions.command_table import SHELLS, names
from callboard.core.permissions.shell_effects import analyse
from callboard.core.permissions.values import (
    Arg,
    Function,
    Group,
    HardRules,
    Node,
    Pipeline,
    Script,
    Simple,
    UnparsedScript,
)
from callboard.types.hook_answers import HandlerResult
from callboard.types.lazy_dataclass import dataclass
from callboard.types.records import Json

MOST_BYTES = 1_000_000
"""Most bytes that are kept of each stream. The rest is read and dropped, so that the command never blocks on it."""
LINGER = 0.5
"""Seconds that the streams have to end after the command has ended: another process may hold them open."""


@dataclass(frozen=True, slots=True)
class CommandHandler:
    """A `HookHandler` that runs a command. Equal handlers are the same hook, even from different files."""

    command: str
    """Command line for bash; with `args` the program itself."""
    project: str
    """Absolute path of the workspace: `CLAUDE_PROJECT_DIR`, even if the agent works in a worktree."""
    args: tuple[str, ...] | None = None
    timeout: float | None = None
    root: str = ""
    """`CLAUDE_PLUGIN_ROOT`: the folder of the hook's bundle; empty: it has none."""
    environment: Mapping[str, str] | None = field(default=None, compare=False)
    """More variables for the command; None: the runtime's own variables that `clean_environment` passes."""
    sandbox: bool | None = None
    """True: it runs in the sandbox; False: outside. None: its entry does not decide."""
    session_sandbox: HookSandbox | None = field(default=None, compare=False, repr=False)
    """Sandbox of the session; None: it has none."""

    @property
    def name(self) -> str:
        """Return the command on one line, shortened."""
        line = " ".join((self.command, *(self.args or ())))
        text = " ".join(line.split())
        return text if len(text) <= 60 else text[:59] + "…"

    async def run(self, event_json: Json, timeout: float) -> HandlerResult:
        """Run it once. See `HookHandler.run`."""
        try:
            with anyio.move_on_after(timeout):
                if self.session_sandbox is not None and await self._needs_sandbox(self.session_sandbox, event_json):
                    ended = await self._ran_inside(self.session_sandbox, event_json, timeout)
                else:
                    ended = await self._ran(event_json)
                if ended is not None:
                    return output_meaning(event_json, *ended)
        except (OSError, ValueError) as error:  # no such program or folder, or a NUL in a word
            return HandlerResult(fault=f"cannot be started: {error}")
        return HandlerResult(fault=f"no answer within {timeout:g} s")

    async def _needs_sandbox(self, session_sandbox: HookSandbox, event_json: Json) -> bool:
        if self.sandbox is not None or not session_sandbox.in_force:
            return bool(self.sandbox) and session_sandbox.in_force
        folder = Path(str(event_json["cwd"]))
        return await anyio.to_thread.run_sync(starts_workspace_code, self._line(), folder, Path(self.project))

    async def _ran_inside(
        self, session_sandbox: HookSandbox, event_json: Json, timeout: float
    ) -> tuple[int, str, str] | None:
        """Run it in the sandbox; return None after a timeout. Report a failure that the sandbox caused as such."""
        folder = Path(str(event_json["cwd"]))
        ended = await session_sandbox.run(
            self._line(), folder, timeout=timeout, event=json.dumps(event_json).encode(), environment=self._places()
        )
        if ended is None or ended[0] in (0, 2):
            return ended
        code, out, err = ended
        return code, out, f"{err.rstrip()}\n[It ran in the sandbox; {OPT_OUT}]".lstrip()

    def _line(self) -> str:
        """Return the command as one line for bash, with its placeholders for paths replaced."""
        if self.args is not None:
            return shlex.join(self._filled(word) for word in (self.command, *self.args))
        line = self.command
        for name, value in self._places().items():
            line = line.replace("${" + name + "}", value) if value == shlex.quote(value) else line
            line = re.sub(rf"\${name}(?!\w)", value.replace("\\", r"\\"), line) if value == shlex.quote(value) else line
        return line

    async def _ran(self, event_json: Json) -> tuple[int, str, str]:
        """Return its exit code (-N after signal N), and its output on both streams."""
        process: Process | None = None
        with anyio.CancelScope(shield=True):  # cancelled during the start, it would continue unknown to the runtime
            process = await anyio.open_process(
                self._argv(),
                stdin=PIPE,
                stdout=PIPE,
                stderr=PIPE,
                cwd=str(event_json["cwd"]),
                env=self._environment(),
                start_new_session=True,
            )
        assert process is not None
        give_back(process.pid)
        try:
            return await _followed(process, json.dumps(event_json).encode())
        except BaseException:
            kill_session(process.pid)
            raise
        finally:
            with anyio.CancelScope(shield=True):
                await _closed(process)

    def _argv(self) -> list[str]:
        if self.args is None:
            return [find_program("bash", Path(self.project)) or "/bin/sh", "-c", self.command]
        program, *arguments = (self._filled(word) for word in (self.command, *self.args))
        if "/" not in program:
            path = find_program(program, Path(self.project))
            if path is None:
                raise FileNotFoundError(f"no program {program!r} on the PATH outside the workspace")
            program = path
        return [program, *arguments]

    def _filled(self, word: str) -> str:
        for name, value in self._places().items():
            word = word.replace("${" + name + "}", value)
        return word

    def _places(self) -> dict[str, str]:
        places = {"CLAUDE_PROJECT_DIR": self.project}
        return places | {"CLAUDE_PLUGIN_ROOT": self.root} if self.root else places

    def _environment(self) -> dict[str, str]:
        environment = clean_environment(os.environ) if self.environment is None else self.environment
        return {**outside_environment(environment, self._line(), Path(self.project)), **self._places()}


class _Heard:
    """Output of one stream, up to `MOST_BYTES`."""

    def __init__(self, stream: ByteReceiveStream) -> None:
        self._stream = stream
        self._said = bytearray()
        self.ended = anyio.Event()

    async def listen(self) -> None:
        """Read to the end."""
        try:
            async for piece in self._stream:
                self._said += piece[: MOST_BYTES - len(self._said)]
        except (anyio.BrokenResourceError, anyio.ClosedResourceError):
            pass  # closed by the runtime, or reset: the output so far counts
        finally:
            self.ended.set()

    def text(self) -> str:
        return self._said.decode("utf-8", "replace")


async def _followed(process: Process, event: bytes) -> tuple[int, str, str]:
    """Pass the event to the process, and read its output until it ends."""
    assert process.stdout is not None
    assert process.stderr is not None
    out = _Heard(process.stdout)
    err = _Heard(process.stderr)
    code: int | None = None
    async with anyio.create_task_group() as group:
        group.start_soon(_write_event, process, event)
        group.start_soon(out.listen)
        group.start_soon(err.listen)
        code = await process.wait()
        with anyio.move_on_after(LINGER):
            await out.ended.wait()
            await err.ended.wait()
        group.cancel_scope.cancel()
    assert code is not None
    return code, out.text(), err.text()


async def _write_event(process: Process, event: bytes) -> None:
    assert process.stdin is not None
    try:
        await process.stdin.send(event)
        await process.stdin.aclose()
    except (OSError, anyio.BrokenResourceError, anyio.ClosedResourceError):
        return  # many commands end without reading their input


async def _closed(process: Process) -> None:
    """Close the runtime's ends of the streams and read the exit status."""
    try:
        await process.aclose()
    except OSError:
        await process.wait()  # input that it never read cannot be written now


MOST_ROUNDS = 4
"""Depth to which scripts inside scripts are followed."""

_BUILTINS = names(
    ": . [ [[ alias bg bind break builtin caller cd command compgen complete compopt continue declare dirs disown echo "
    "enable eval exec exit export false fc fg getopts hash help history jobs kill let local logout mapfile popd printf "
    "pushd pwd read readarray readonly return set shift shopt source suspend test times trap true type typeset ulimit "
    "umask unalias unset wait"
)
_INTERPRETERS = SHELLS | names("python python3 node deno ruby perl php")
_SUFFIXES = (".sh", ".bash", ".py", ".js", ".mjs", ".cjs", ".ts", ".rb", ".pl", ".php")


def missing_programs(command: str, args: Sequence[str] | None, project: Path) -> Iterator[str]:
    """Yield a sentence for each program or script missing from the command of a hook of this workspace.

    `args`: as in hook files; with them, `command` is the program itself.
    """
    if args is not None:
        program, *arguments = (_filled(word, project) for word in (command, *args))
        yield from _program(program, project)
        yield from _script(program, arguments, project)
        return
    source = _filled(command, project)
    parser = BashParser()
    scripts = {source: parser.parse(source)}
    for _ in range(MOST_ROUNDS):
        scripts |= {
            inner: parser.parse(inner) for inner in analyse(source, scripts, str(Path.home()), HardRules()).missing
        }
    for parsed in scripts.values():
        if isinstance(parsed, UnparsedScript):
            yield f"it cannot be read: {parsed.why}"
            return
    own = frozenset(
        name for script in scripts.values() if isinstance(script, Script) for name in _functions(script.nodes)
    )
    problems: set[str] = set()
    for part in analyse(source, scripts, str(Path.home()), HardRules()).parts:
        for view in () if part.guessed else part.views:
            problems.update(_of_words(view.words, own, project))
    yield from sorted(problems)


def _of_words(argv: Sequence[Arg], own: frozenset[str], project: Path) -> Iterator[str]:
    if not argv or not argv[0].known or argv[0].glob or argv[0].text in _BUILTINS | own:
        return
    yield from _program(argv[0].text, project)
    arguments = [word.text if word.known and not word.glob else "" for word in argv[1:]]
    yield from _script(argv[0].text, arguments, project)


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
    """Yield the script argument of an interpreter if it is literal."""
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

"""Workflows from Python files, as the command line runs them: found, given their arguments, run to their end.

The file is the person's own, who names it: it is imported, and what stands in it is run.
"""

from __future__ import annotations

import importlib
import json
import sys
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any

import anyio

from callboard.api.options import SessionOptions
from callboard.api.session import Session
from callboard.api.workflows.running import AnyWorkflow, WorkflowFunction
from callboard.faces.approvals import PersonApprover
from callboard.faces.keyboard import Keyboard, person_is_there
from callboard.faces.leaving import Leaving, heed_signals
from callboard.faces.screen import Screen
from callboard.faces.terminal import Terminal, block
from callboard.words.errors import CallboardError, UsageError
from callboard.words.values import Json


@dataclass(frozen=True, slots=True)
class Wish:
    """What to run. `resume`: the session and the run that go on; None: a new one in a new session."""

    workspace: Path
    place: str
    given: Mapping[str, str] = field(default_factory=dict[str, str])
    options: SessionOptions = field(default_factory=SessionOptions)
    run_id: str = ""
    budget: float | None = None
    resume: tuple[str, str] | None = None
    redo: tuple[str, ...] = ()
    json: bool = False


def find_workflow(place: str) -> AnyWorkflow:
    """The workflow of `FILE.py:NAME`, `FILE.py` (the only one in it) or `module:NAME`. Raises `UsageError`."""
    where, _, name = place.rpartition(":") if ":" in place else (place, "", "")
    module = _module(where)
    found: dict[str, AnyWorkflow] = {key: one for key, one in vars(module).items() if _is_workflow(one)}
    if not name and len(found) == 1:
        return next(iter(found.values()))
    if name not in found:
        there = f"there are: {', '.join(found)}" if found else "there is none: put `@workflow` over an async function"
        raise UsageError(f"{where} has no workflow {name!r}; {there}" if name else f"{where}: name one; {there}")
    return found[name]


def _is_workflow(one: object) -> bool:
    return isinstance(one, WorkflowFunction)


def _module(where: str) -> ModuleType:
    file = Path(where)
    try:
        if file.suffix != ".py":
            sys.path.insert(0, str(Path.cwd()))
            return importlib.import_module(where)
        spec = spec_from_file_location(file.stem, file.resolve())
        if spec is None or spec.loader is None or not file.is_file():
            raise UsageError(f"there is no file {where}: write FILE.py:NAME")
        sys.path.insert(0, str(file.resolve().parent))  # what stands beside it can be imported
        module = sys.modules[spec.name] = module_from_spec(spec)  # where its own classes look for it
        spec.loader.exec_module(module)
        return module
    except CallboardError:
        raise
    except Exception as failed:
        last = traceback.extract_tb(failed.__traceback__)[-1]
        raise UsageError(
            f"{where} cannot be imported: {type(failed).__name__}: {failed} ({last.filename}:{last.lineno})"
        ) from failed


def arguments(function: AnyWorkflow, given: Mapping[str, str]) -> Json:
    """`--arg k=v` as the workflow takes it: text where it wants text, else JSON. Raises `UsageError`."""
    known = {one.name: one for one in function.taken.arguments}
    read: dict[str, Any] = {}
    for name, text in given.items():
        if name not in known:
            raise UsageError(f"workflow {function.name} takes no {name!r}; it takes {', '.join(known) or 'nothing'}")
        plain = known[name].schema.get("type") == "string"
        read[name] = text if plain else _json_or_text(text)
    try:
        _, values = function.taken.bind(read)
    except ValueError as wrong:
        raise UsageError(f"workflow {function.name}: {wrong}") from wrong
    return function.arguments((), {name: value for name, value in values.items() if name in known})


def _json_or_text(text: str) -> object:
    try:
        return json.loads(text)
    except ValueError:
        return text


def run_wish(wish: Wish, terminal: Terminal) -> int:
    """Run in this thread until it is over; the exit code."""
    return anyio.run(_Run(wish, terminal).go)


class _Run:
    def __init__(self, wish: Wish, terminal: Terminal) -> None:
        self._wish, self._terminal = wish, terminal
        self._function = find_workflow(wish.place)
        self._given = arguments(self._function, wish.given) if wish.resume is None else {}
        self._told = ""

    async def go(self) -> int:
        leaving = Leaving()
        codes: list[int] = []
        async with anyio.create_task_group() as group:
            await group.start(heed_signals, leaving, group.cancel_scope, self._nothing_to_stop)
            codes.append(await self._host())
            group.cancel_scope.cancel()
        if leaving.code is not None:
            self._terminal.terminal_print(block(f"the workflow is kept: {self._told} goes on with it", "dim"))
        return leaving.code or next(iter(codes), 130)

    async def _nothing_to_stop(self) -> bool:
        return False

    async def _host(self) -> int:
        wish, screen = self._wish, Screen(self._terminal, result_apart=False)
        options: SessionOptions = {**self._function.options, **wish.options, "observers": [screen]}
        person = PersonApprover(Keyboard(self._terminal).ask, self._terminal) if person_is_there() else None
        if person is not None:
            options["approver"] = person
        made = Session(wish.workspace, **options)
        if wish.resume is not None:
            made = Session.resume(wish.workspace, wish.resume[0], **options)
        async with made as session:
            screen.attach(session.runtime)
            if person is not None:
                person.attach(session.runtime)
            return await self._work(session)

    async def _work(self, session: Session) -> int:
        wish = self._wish
        run_id = wish.resume[1] if wish.resume else wish.run_id or f"{self._function.name}-{session.id[-6:]}"
        self._told = f"`callboard workflow resume {run_id}`"
        self._terminal.terminal_print(block(f"workflow {run_id} of session {session.id}", "dim", progress=True))
        function = self._function.named(run_id, budget=wish.budget)
        try:
            if wish.resume is not None:
                result: Any = await session.resume_workflow(function, run_id, redo=wish.redo)
            else:
                result = await session.run_workflow(function, self._given, place=_absolute(wish.place))
        except CallboardError:
            self._terminal.terminal_print(block(f"the workflow is kept: {self._told} goes on with it", "dim"))
            raise
        except Exception as failed:  # noqa: BLE001  # a workflow is the person's own code: its faults are theirs to read
            self._terminal.terminal_print(block("".join(traceback.format_exception(failed)).rstrip(), "bad"))
            self._terminal.terminal_print(block(f"the workflow is kept: {self._told} goes on with it", "dim"))
            return 1
        self._print(session, run_id, function.result_json(result))
        return 0

    def _print(self, session: Session, run_id: str, result: object) -> None:
        if self._wish.json:
            usage = session.cost().model_dump()
            told = {"id": run_id, "session": session.id, "status": "done", "result": result, "usage": usage}
            self._terminal.record(json.dumps(told))
        elif result is not None:
            self._terminal.result(result if isinstance(result, str) else json.dumps(result, indent=2))


def _absolute(place: str) -> str:
    """The place as it is found from any folder."""
    where, colon, name = place.rpartition(":") if ":" in place else (place, "", "")
    return f"{Path(where).resolve()}{colon}{name}" if where.endswith(".py") else place


def pairs(given: Sequence[str]) -> dict[str, str]:
    """`k=v` texts as a mapping. Raises `UsageError`."""
    found: dict[str, str] = {}
    for one in given:
        name, equals, value = one.partition("=")
        if not equals or not name:
            raise UsageError(f"--arg {one!r}: write it as name=value")
        found[name] = value
    return found

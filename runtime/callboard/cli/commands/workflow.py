"""`workflow`: workflows from Python files: run one, list them, show one step by step, resume one.

The user names the file. It is imported, and its code runs with the given arguments.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import sys
import sysconfig
import time
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import field
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any

import anyio
import click

from callboard.adapters.processes.tool_ancestry import refuse_inside_tool
from callboard.cli.commands.options import FiniteRange, Invocation, as_json, everywhere, permission_grants, with_plugins
from callboard.cli.commands.output import notice_of, terminal_of
from callboard.cli.terminal.approver import PersonApprover
from callboard.cli.terminal.keyboard import Keyboard, person_is_there
from callboard.cli.terminal.screen import Screen
from callboard.cli.terminal.signals import ExitRequests, handle_signals, run_with_signals
from callboard.cli.terminal.terminal import Block, Line, Terminal, block
from callboard.sdk.options import SessionKeywords
from callboard.sdk.session import Session
from callboard.sdk.workflows.decorator import AnyWorkflow, WorkflowFunction
from callboard.sdk.workflows.journal import WorkflowRecord, stored_workflow, stored_workflows
from callboard.sessions.hosted import HostedSession
from callboard.sessions.result import FAILED
from callboard.types.choices import choose
from callboard.types.errors import CallboardError, PersonCanAct, UsageError
from callboard.types.lazy_dataclass import dataclass
from callboard.types.records import Json
from callboard.types.workflows import WorkflowNoted

_MARKS = {"began": "…", "ended": "✓", "failed": "✗", "dropped": "-"}


@click.group()
@everywhere
def workflow() -> None:
    """Run, list, show and resume workflows from Python files.

    A workflow is an async function with `@workflow` (docs/workflows.md). Each run is journalled in a session: a resume
    continues a run that was interrupted, even by a kill, and repeats no finished step.
    """


@workflow.command()
@click.argument("place", metavar="FILE:NAME")
@click.option("--arg", "args", multiple=True, metavar="K=V", help="Argument of the workflow: text or JSON; repeatable.")
@click.option("--id", "run_id", metavar="ID", help="Id of this run.")
@click.option("--model", metavar="NAME", help="The session's model; rehearsal:FILE and cassette:FILE need no key.")
@permission_grants
@click.option("--max-budget-usd", type=FiniteRange(min=0), metavar="USD", help="Maximum cost of its agents in dollars.")
@click.option("--trust", is_flag=True, help="Trust this workspace: use its hooks, agents, servers and settings.")
@with_plugins
@as_json
@everywhere
@click.pass_obj
def run(invocation: Invocation, /, **values: Any) -> int:
    """Run the workflow NAME of the Python file FILE in a new session, to its end.

    Progress goes to stderr, the result to stdout. NAME may be omitted if the file has one workflow.
    """
    refuse_inside_tool("Running a workflow")
    request = WorkflowRequest(
        workspace=invocation.workspace,
        place=values["place"],
        texts=pairs(values["args"]),
        options=_options(values),
        run_id=values["run_id"] or "",
        budget=values["max_budget_usd"],
        json=values["json_"],
    )
    with terminal_of(invocation) as terminal:
        return run_request(request, terminal)


@workflow.command()
@click.argument("run_id", metavar="ID", required=False)
@click.option("--from", "place", metavar="FILE:NAME", help="Current place of the workflow, if it has moved.")
@click.option("--redo", multiple=True, metavar="STEP", help="Run this step again; repeatable.")
@permission_grants
@click.option("--max-budget-usd", type=FiniteRange(min=0), metavar="USD", help="Maximum cost of its agents in dollars.")
@click.option("--trust", is_flag=True, help="Trust this workspace: use its hooks, agents, servers and settings.")
@with_plugins
@as_json
@everywhere
@click.pass_obj
def resume(invocation: Invocation, /, **values: Any) -> int:
    """Continue the workflow ID (default: the newest). Finished steps do not run again."""
    refuse_inside_tool("Resuming a workflow")
    stored = anyio.run(stored_workflow, invocation.workspace, values["run_id"], notice_of(invocation))
    request = WorkflowRequest(
        workspace=invocation.workspace,
        place=values["place"] or stored.row.place,
        options=_options(values),
        budget=values["max_budget_usd"],
        resume=(stored.session, stored.row.id),
        redo=tuple(values["redo"]),
        json=values["json_"],
    )
    with terminal_of(invocation) as terminal:
        return run_request(request, terminal)


@workflow.command("list")
@as_json
@everywhere
@click.pass_obj
def list_(invocation: Invocation, /, json_: bool) -> None:
    """List the workflows of this workspace, newest first."""
    workflows = anyio.run(stored_workflows, invocation.workspace, notice_of(invocation))
    with terminal_of(invocation) as terminal:
        if json_:
            terminal.record(json.dumps([_row_json(workflow) for workflow in workflows]))
        else:
            terminal.rows(Block(tuple(_rows(workflows))))


@workflow.command()
@click.argument("run_id", metavar="ID", required=False)
@as_json
@everywhere
@click.pass_obj
def show(invocation: Invocation, /, run_id: str | None, json_: bool) -> None:
    """Show the workflow ID (default: the newest): its arguments, each step, and its result."""
    stored = anyio.run(stored_workflow, invocation.workspace, run_id, notice_of(invocation))
    with terminal_of(invocation) as terminal:
        if json_:
            steps = [step.model_dump(mode="json") for step in stored.steps]
            terminal.record(json.dumps({**_row_json(stored), "steps": steps}))
        else:
            terminal.rows(Block(tuple(_workflow_lines(stored))))


def _options(values: dict[str, Any]) -> SessionKeywords:
    options: SessionKeywords = {"trust": bool(values["trust"])}
    if values.get("model"):
        options["model"] = values["model"]
    if values.get("permission_mode"):
        options["permission_mode"] = values["permission_mode"]
    if values.get("allow"):
        options["allow"] = list(values["allow"])
    if values.get("plugins"):
        options["plugins"] = [Path(plugin) for plugin in values["plugins"]]
    return options


def _row_json(stored: WorkflowRecord) -> dict[str, Any]:
    return {**stored.row.model_dump(mode="json"), "session": stored.session, "status": stored.status}


def _rows(workflows: Sequence[WorkflowRecord]) -> list[Line]:
    if not workflows:
        return [Line("no workflow has run in this workspace yet: callboard workflow run FILE:NAME", "dim")]
    wide = max(len(workflow.row.id) for workflow in workflows)
    return [
        Line(f"{workflow.row.id:<{wide}}  {workflow.status:<8} {_moment(workflow.row.created_at)}  {workflow.row.name}")
        for workflow in workflows
    ]


def _workflow_lines(stored: WorkflowRecord) -> list[Line]:
    row = stored.row
    lines = [
        Line(f"{row.id}: {row.name} [{stored.status}]", "strong"),
        Line(f"  {row.place}, session {stored.session}, begun {_moment(row.created_at)}"),
        Line(f"  arguments: {json.dumps(row.args)}"),
    ]
    lines += [_step_line(step) for step in stored.steps]
    if row.status == "done":
        lines.append(Line(f"  result: {json.dumps(row.result)}"))
    if row.error:
        lines.append(Line(f"  {row.error}", "bad"))
    return lines


def _step_line(step: WorkflowNoted) -> Line:
    agent = f" by {step.agent}" if step.agent else ""
    came = f": {_short(step.value)}" if step.t == "ended" and step.kind != "now" else ""
    reason = f": {step.error}" if step.t == "failed" else ""
    return Line(
        f"  {_MARKS[step.t]} {step.step} {step.label}{agent}{came}{reason}", "bad" if step.t == "failed" else "plain"
    )


def _short(value: object) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 80 else f"{text[:80]}…"


def _moment(at: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(at))


@dataclass(frozen=True, slots=True)
class WorkflowRequest:
    """Workflow to run. `resume`: the session and the run to continue; None: a new run in a new session."""

    workspace: Path
    place: str
    texts: Mapping[str, str] = field(default_factory=dict[str, str])
    options: SessionKeywords = field(default_factory=SessionKeywords)
    run_id: str = ""
    budget: float | None = None
    resume: tuple[str, str] | None = None
    redo: tuple[str, ...] = ()
    json: bool = False


_NOT_USERS = ("<", __file__, *(sysconfig.get_path(name) for name in ("stdlib", "platstdlib")))
"""Beginnings of the file names of frames that are not the user's: of Python itself, and of this module."""


def find_workflow(place: str) -> AnyWorkflow:
    """Return the workflow of `FILE.py:NAME`, `FILE.py` (if it has only one) or `module:NAME`. Raises `UsageError`."""
    where, _, name = place.rpartition(":") if ":" in place else (place, "", "")
    module = _module(where)
    workflows: dict[str, AnyWorkflow] = {
        key: value for key, value in vars(module).items() if isinstance(value, WorkflowFunction)
    }
    if not name and len(workflows) == 1:
        return next(iter(workflows.values()))
    if name not in workflows:
        hint = choose(workflows) if workflows else "decorate an async function with `@workflow`"
        problem = f"unknown workflow {name!r} in {where}" if name else f"{where}: name one"
        raise UsageError(f"{problem}: {hint}")
    return workflows[name]


def _module(where: str) -> ModuleType:
    file = Path(where)
    try:
        if file.suffix != ".py":
            sys.path.insert(0, str(Path.cwd()))
            return importlib.import_module(where)
        spec = spec_from_file_location(file.stem, file.resolve())
        if spec is None or spec.loader is None or not file.is_file():
            raise UsageError(f"there is no file {where}: write FILE.py:NAME")
        sys.path.insert(0, str(file.resolve().parent))  # its neighbours can be imported
        module = sys.modules[spec.name] = module_from_spec(spec)  # its classes look their module up here
        spec.loader.exec_module(module)
        return module
    except CallboardError:
        raise
    except ModuleNotFoundError as failed:
        if file.suffix != ".py" and failed.name in _packages(where):
            raise UsageError(f"there is no module {where!r}: write FILE.py:NAME, or module:NAME") from failed
        raise _not_imported(where, failed) from failed
    except Exception as failed:
        raise _not_imported(where, failed) from failed


def _packages(module: str) -> list[str]:
    """Return the name of a module, and those of the packages that contain it."""
    parts = module.split(".")
    return [".".join(parts[:length]) for length in range(1, len(parts) + 1)]


def _not_imported(where: str, failed: Exception) -> UsageError:
    """Return the error for a module that fails, with the line of the user's file, not one inside Python."""
    if isinstance(failed, SyntaxError) and failed.filename:
        line = f"{failed.filename}:{failed.lineno}"
        reason = failed.msg
    else:
        frames = [
            frame for frame in traceback.extract_tb(failed.__traceback__) if not frame.filename.startswith(_NOT_USERS)
        ]
        line = f"{frames[-1].filename}:{frames[-1].lineno}" if frames else ""
        reason = str(failed)
    return UsageError(f"{where} cannot be imported: {type(failed).__name__}: {reason}" + (f" ({line})" if line else ""))


def arguments(function: AnyWorkflow, texts: Mapping[str, str]) -> Json:
    """Convert `--arg k=v` for the workflow: text for a parameter of type text, otherwise JSON. Raises `UsageError`."""
    parameters = {parameter.name: parameter for parameter in function.taken.arguments}
    read: dict[str, Any] = {}
    for name, text in texts.items():
        if name not in parameters:
            raise UsageError(
                f"workflow {function.name} takes no {name!r}; it takes {', '.join(parameters) or 'nothing'}"
            )
        plain = parameters[name].schema.get("type") == "string"
        read[name] = text if plain else _json_or_text(text)
    try:
        _, values = function.taken.bind(read)
    except ValueError as wrong:
        raise UsageError(f"workflow {function.name}: {wrong}") from wrong
    return function.arguments((), {name: value for name, value in values.items() if name in parameters})


def _json_or_text(text: str) -> object:
    try:
        return json.loads(text)
    except ValueError:
        return text


def run_request(request: WorkflowRequest, terminal: Terminal) -> int:
    """Run in this thread to the end and return the exit code."""
    return run_with_signals(_Run(request, terminal).go, terminal)


class _Run:
    def __init__(self, request: WorkflowRequest, terminal: Terminal) -> None:
        self._request = request
        self._terminal = terminal
        self._function = find_workflow(request.place)
        self._arguments = arguments(self._function, request.texts) if request.resume is None else {}
        self._told = ""

    async def go(self, leaving: ExitRequests) -> int:
        codes: list[int] = []
        async with anyio.create_task_group() as group:
            await group.start(handle_signals, leaving, group.cancel_scope, self._nothing_to_stop)
            codes.append(await self._host())
            group.cancel_scope.cancel()
        if leaving.code is not None:
            self._print_kept()
        return leaving.code or next(iter(codes), 130)

    async def _nothing_to_stop(self) -> bool:
        return False

    async def _host(self) -> int:
        request = self._request
        screen = Screen(self._terminal, result_apart=False)
        options: SessionKeywords = {**self._function.options, **request.options, "observers": [screen]}
        person = PersonApprover(Keyboard(self._terminal).ask, self._terminal) if person_is_there() else None
        if person is not None:
            options["approver"] = person
        made = Session(request.workspace, **options)
        if request.resume is not None:
            made = Session.resume(request.workspace, request.resume[0], **options)
        async with made as session:
            screen.attach(session.runtime, asks=person.asks if person is not None else ())
            if person is not None:
                person.attach(session.runtime)
            return await self._work(session)

    async def _work(self, session: Session) -> int:
        request = self._request
        run_id = request.resume[1] if request.resume else request.run_id or f"{self._function.name}-{session.id[-6:]}"
        self._told = f"`callboard workflow resume {run_id}`"
        self._terminal.terminal_print(block(f"workflow {run_id} of session {session.id}", "dim", progress=True))
        function = self._function.named(run_id, budget=request.budget)
        hosted = session.runtime
        assert isinstance(hosted, HostedSession), "this process opened the session to host it"
        try:
            if request.resume is not None:
                result: Any = await session.resume_workflow(function, run_id, redo=request.redo)
            else:
                result = await session.run_workflow(function, self._arguments, place=_absolute(request.place))
        except CallboardError as failed:
            self._print_kept()
            if isinstance(failed, PersonCanAct):
                # If another process has taken the session over, only that process can write its end.
                with contextlib.suppress(CallboardError):
                    await hosted.mark_ended(failed.exit_code)
            raise
        except Exception as failed:  # noqa: BLE001 - a fault in the person's own code is shown to them
            self._terminal.terminal_print(block("".join(traceback.format_exception(failed)).rstrip(), "bad"))
            self._print_kept()
            await hosted.mark_ended(FAILED)
            return FAILED
        self._print(session, run_id, function.result_json(result))
        outcome = hosted.work_outcome()
        if outcome.why:
            self._terminal.terminal_print(block(f"callboard: {outcome.why}", "bad"))
        await hosted.mark_ended(outcome.exit_code)
        return outcome.exit_code

    def _print_kept(self) -> None:
        self._terminal.terminal_print(block(f"the workflow is kept: {self._told} continues it", "dim"))

    def _print(self, session: Session, run_id: str, result: object) -> None:
        if self._request.json:
            usage = session.cost().model_dump()
            record = {"id": run_id, "session": session.id, "status": "done", "result": result, "usage": usage}
            self._terminal.record(json.dumps(record))
        elif result is not None:
            self._terminal.result(result if isinstance(result, str) else json.dumps(result, indent=2))


def _absolute(place: str) -> str:
    """Return the location of the workflow in a form that works from any folder."""
    where, colon, name = place.rpartition(":") if ":" in place else (place, "", "")
    return f"{Path(where).resolve()}{colon}{name}" if where.endswith(".py") else place


def pairs(texts: Sequence[str]) -> dict[str, str]:
    """Return `k=v` texts as a mapping. Raises `UsageError`."""
    values: dict[str, str] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise UsageError(f"--arg {text!r}: write it as name=value")
        values[name] = value
    return values

"""`workflow`: workflows from Python files: run one, list them, show one step by step, resume one."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import anyio
import click

from callboard.api.options import SessionOptions
from callboard.api.workflows.kept import Kept, kept_workflow, kept_workflows
from callboard.faces.cli.options import Given, as_json, everywhere, refuse_tools, with_plugins
from callboard.faces.cli.run import MODES, terminal_of
from callboard.faces.terminal import Block, Line
from callboard.faces.workflows import Wish, pairs, run_wish
from callboard.words.workflows import WorkflowNoted

_MARKS = {"began": "…", "ended": "✓", "failed": "✗", "dropped": "-"}


@click.group()
@everywhere
def workflow() -> None:
    """Run, list, show and resume workflows from Python files.

    A workflow is an async function with `@workflow` (docs/workflows.md). Each run is journalled in a session: one that
    was cut off, also by a kill, goes on where it was and repeats nothing that was done.
    """


@workflow.command()
@click.argument("place", metavar="FILE:NAME")
@click.option(
    "--arg", "args", multiple=True, metavar="K=V", help="An argument: text, or JSON; may stand several times."
)
@click.option("--id", "run_id", metavar="ID", help="The id of this run.")
@click.option("--model", metavar="NAME", help="The session's model; rehearsal:FILE and cassette:FILE need no key.")
@click.option("--permission-mode", type=click.Choice(MODES), help="What happens to calls that no rule decides.")
@click.option("--allowed-tools", "allow", multiple=True, metavar="RULE", help="Allow without asking.")
@click.option("--max-budget-usd", type=click.FloatRange(min=0), help="Dollars that its agents may cost, at most.")
@click.option("--trust", is_flag=True, help="Use what this workspace brings: hooks, agents, servers, settings.")
@with_plugins
@as_json
@everywhere
@click.pass_obj
def run(given: Given, /, **asked: Any) -> int:
    """Run the workflow NAME of the Python file FILE in a new session, to its end.

    What happens goes to stderr, what it returns to stdout. NAME may be left out where the file has one workflow.
    """
    refuse_tools("Running a workflow")
    wish = Wish(
        workspace=given.workspace,
        place=asked["place"],
        given=pairs(asked["args"]),
        options=_options(asked),
        run_id=asked["run_id"] or "",
        budget=asked["max_budget_usd"],
        json=asked["json_"],
    )
    with terminal_of(given) as terminal:
        return run_wish(wish, terminal)


@workflow.command()
@click.argument("run_id", metavar="ID", required=False)
@click.option("--from", "place", metavar="FILE:NAME", help="Where it stands now, if it has moved.")
@click.option("--redo", multiple=True, metavar="STEP", help="Let this step run again; may stand several times.")
@click.option("--permission-mode", type=click.Choice(MODES), help="What happens to calls that no rule decides.")
@click.option("--allowed-tools", "allow", multiple=True, metavar="RULE", help="Allow without asking.")
@click.option("--max-budget-usd", type=click.FloatRange(min=0), help="Dollars that its agents may cost, at most.")
@click.option("--trust", is_flag=True, help="Use what this workspace brings: hooks, agents, servers, settings.")
@with_plugins
@as_json
@everywhere
@click.pass_obj
def resume(given: Given, /, **asked: Any) -> int:
    """Go on with the workflow ID (the newest): what was done is not done again."""
    refuse_tools("Resuming a workflow")
    kept = anyio.run(kept_workflow, given.workspace, asked["run_id"])
    wish = Wish(
        workspace=given.workspace,
        place=asked["place"] or kept.row.place,
        options=_options(asked),
        budget=asked["max_budget_usd"],
        resume=(kept.session, kept.row.id),
        redo=tuple(asked["redo"]),
        json=asked["json_"],
    )
    with terminal_of(given) as terminal:
        return run_wish(wish, terminal)


@workflow.command("list")
@as_json
@everywhere
@click.pass_obj
def list_(given: Given, /, json_: bool) -> None:
    """List the workflows of this workspace, newest first."""
    found = anyio.run(kept_workflows, given.workspace)
    with terminal_of(given) as terminal:
        if json_:
            terminal.record(json.dumps([_row_json(one) for one in found]))
        else:
            terminal.rows(Block(tuple(_rows(found))))


@workflow.command()
@click.argument("run_id", metavar="ID", required=False)
@as_json
@everywhere
@click.pass_obj
def show(given: Given, /, run_id: str | None, json_: bool) -> None:
    """Show the workflow ID (the newest): its arguments, each step, and what it came to."""
    kept = anyio.run(kept_workflow, given.workspace, run_id)
    with terminal_of(given) as terminal:
        if json_:
            steps = [one.model_dump(mode="json") for one in kept.steps]
            terminal.record(json.dumps({**_row_json(kept), "steps": steps}))
        else:
            terminal.rows(Block(tuple(_shown(kept))))


def _options(asked: dict[str, Any]) -> SessionOptions:
    options: SessionOptions = {"trust": bool(asked["trust"])}
    if asked.get("model"):
        options["model"] = asked["model"]
    if asked.get("permission_mode"):
        options["permission_mode"] = asked["permission_mode"]
    if asked.get("allow"):
        options["allow"] = list(asked["allow"])
    if asked.get("plugins"):
        options["plugins"] = [Path(one) for one in asked["plugins"]]
    return options


def _row_json(kept: Kept) -> dict[str, Any]:
    return {**kept.row.model_dump(mode="json"), "session": kept.session, "status": kept.status}


def _rows(found: Sequence[Kept]) -> list[Line]:
    if not found:
        return [Line("no workflow has run in this workspace yet: callboard workflow run FILE:NAME", "dim")]
    wide = max(len(one.row.id) for one in found)
    return [
        Line(f"{one.row.id:<{wide}}  {one.status:<8} {_moment(one.row.created_at)}  {one.row.name}") for one in found
    ]


def _shown(kept: Kept) -> list[Line]:
    row = kept.row
    lines = [
        Line(f"{row.id}: {row.name} [{kept.status}]", "strong"),
        Line(f"  {row.place}, session {kept.session}, begun {_moment(row.created_at)}"),
        Line(f"  arguments: {json.dumps(row.args)}"),
    ]
    lines += [_step_line(one) for one in kept.steps]
    if row.status == "done":
        lines.append(Line(f"  result: {json.dumps(row.result)}"))
    if row.error:
        lines.append(Line(f"  {row.error}", "bad"))
    return lines


def _step_line(step: WorkflowNoted) -> Line:
    who = f" by {step.agent}" if step.agent else ""
    came = f": {_short(step.value)}" if step.t == "ended" and step.kind != "now" else ""
    why = f": {step.error}" if step.t == "failed" else ""
    return Line(
        f"  {_MARKS[step.t]} {step.step} {step.label}{who}{came}{why}", "bad" if step.t == "failed" else "plain"
    )


def _short(value: object) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 80 else f"{text[:80]}…"


def _moment(at: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(at))

"""Write `docs/records.md` from the classes: `python tests/core/records_page.py`. A test checks that it is current."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import get_args

from tests.core.documented_fields import documented_fields, own_docstring

from callboard.types import agent_spec as specs
from callboard.types import checkpoints, events, schedules, workflows, worktrees
from callboard.types import messages as context
from callboard.types import rate_limits as rates
from callboard.types import records as values
from callboard.types.records import Value

PAGE = Path(__file__).parents[2] / "docs" / "records.md"
EVENTS: tuple[type[Value], ...] = get_args(get_args(events.Event)[0])
ROWS = (
    values.Envelope,
    values.Request,
    values.Task,
    schedules.ScheduleRights,
    schedules.Schedule,
    schedules.Fire,
    values.SessionRule,
    values.AgentRow,
    values.SessionRow,
    values.HostRow,
    values.HostAbout,
    values.QueuedSession,
    values.RefusedRequest,
    values.RemovedSession,
    values.AnswerLink,
    rates.RateNotice,
    worktrees.WorktreeNoted,
    checkpoints.CheckpointRow,
    workflows.WorkflowRow,
    workflows.WorkflowNoted,
)
PARTS = (
    values.ToolCall,
    values.Usage,
    values.Fault,
    values.Todo,
    values.Said,
    values.Budget,
    values.PathGrant,
    values.HostGrant,
    context.Placed,
    context.Injection,
    context.Edit,
    context.Restored,
    context.SummaryWanted,
    specs.AgentSpec,
    specs.Limits,
    specs.ModelLimits,
    specs.StageSpec,
)

INTRO = """\
# Records

All durable data, version 1: the content of journals, mailboxes, and rows of a store. This page is generated from the
classes (`python tests/core/records_page.py`), and a test fails if it is out of date.

Three promises:

- **A record loads forever.** `tests/core/golden/v1.jsonl` has a record of each kind as version 1 wrote it. Every later
  version of Callboard must load it with the same meaning.
- **A field is never renamed and never changes its meaning.** A new field has a default, so that old records load. An
  older version ignores fields that a newer version wrote.
- **A change that a default cannot express is a new kind of record**, with its own `t`, or a higher `v` with a rule that
  reads the old one.

All records are JSON objects in UTF-8. Times are Unix seconds (float, UTC), money is in US dollars, and ids are text. In
the tables, a field without a default is required.

## Names in the store

| name in the store | content |
| --- | --- |
| `j/<session>/<name>.<incarnation>` (stream) | an agent's journal: events in order, numbered from 1 |
| `m/<session>/<name>.<incarnation>` (stream) | its mailbox: envelopes; a known id is not appended again |
| `s/<session>` | `SessionRow` |
| `host/<session>` | `HostRow` of the process that hosts it |
| `queue/<session>` | `QueuedSession` of a session that needs a host |
| `s/<session>/agent/<name>` | `AgentRow` of the newest incarnation |
| `s/<session>/task/<id>` | `Task` |
| `s/<session>/request/<id>` | `Request` |
| `s/<session>/schedule/<id>` | `Schedule` |
| `fires/<session>/<schedule>/<time>` | `Fire` |
| `s/<session>/rule/<id>` | `SessionRule` |
| `s/<session>/spec/<sha256>` | `AgentSpec`, by its content |
| `w/<session>/<id>` | `WorkflowRow`, a run of a workflow; the stream of that name is its journal: `WorkflowNoted` |
| `worktrees` (stream) | changes of git worktrees, for all sessions of the workspace: `WorktreeNoted` |
| `checkpoint/<session>/<tree>` | `CheckpointRow` of a worktree of the session; without a tree: of its workspace |
| `snap/<session>/<name>.<incarnation>` | the newest snapshot of an agent's state: a cache, in a format \
that may change |
"""


def page() -> str:
    """Return the whole page."""
    parts = [
        INTRO,
        "## Events\n\nEach has `v` (1), `at` (the time of recording), and `t` (kind). `apply` defines its effect.\n",
        *(_section(kind) for kind in EVENTS),
        "## Envelopes and rows\n",
        *(_section(kind) for kind in ROWS),
        "## Parts of the above\n",
        *(_section(kind) for kind in PARTS),
    ]
    return "\n".join(parts)


def _section(kind: type[Value]) -> str:
    tag = kind.model_fields["t"].default if "t" in kind.model_fields else None
    name = tag if isinstance(tag, str) else kind.__name__
    said = own_docstring(kind)
    fields = [(cells, said) for *cells, said in documented_fields(kind) if cells[0] != "t"]
    rows = [f"| {_marked(cells)} | {said} |" for cells, said in fields]
    table = (
        ["| field | type | default | meaning |", "| --- | --- | --- | --- |", *rows] if rows else ["No more fields."]
    )
    return "\n".join([f"### `{name}`", "", *([said, ""] if said else []), *table, ""])


def _marked(cells: Sequence[str]) -> str:
    return " | ".join(f"`{cell}`" if cell else "" for cell in cells).replace(" | None", " \\| None")


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")

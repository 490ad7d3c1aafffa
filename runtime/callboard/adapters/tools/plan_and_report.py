"""Tools for plans and reports.

The tools submit a plan, request one from a teammate, answer one, and send the final report on an assignment.

An approval is a change of the request's row; its envelope only wakes the agent. After its report an agent owns no task.
"""

from __future__ import annotations

from typing import Literal

from pydantic import AliasChoices, Field

from callboard.adapters.tools.base import ToolInput, read_input, schema_of, store_tool
from callboard.adapters.tools.task_rows import put_task
from callboard.adapters.tools.team import envelope, teammate
from callboard.core.approvals import requests
from callboard.core.approvals.plans import (
    COMMIT_DIGITS,
    AnswerDetails,
    PlanBinding,
    apply_answer_details,
    options_of,
    payload_of,
    same_work,
    subject_of,
)
from callboard.core.keys import request_envelope_id, request_key, short_id
from callboard.core.tasks import board as task_rules
from callboard.core.tasks.board import Holder
from callboard.ports.store import Put, Write
from callboard.ports.tool import CallContext, Folders, Tool, ToolOutcome, ToolSpec
from callboard.types.errors import ToolRefused
from callboard.types.events import GateSet, Reported, TaskHeld
from callboard.types.lazy_dataclass import dataclass
from callboard.types.records import Json, Request, Task

_SUBMIT = """\
Put your plan up for approval and wait. Write it whole, for someone who has not seen your work: the goal, what you \
found, the steps with the files that each changes, what could go wrong and how you will check the result. In options, \
name real alternatives if there are any. Nothing after this call in your reply is run. If it is rejected, the feedback \
says what to change: submit it again."""
_REQUEST = """\
Ask a teammate for a plan before it does a piece of work: it reads only, until the plan it submits is approved. Use it \
before work that is risky, hard to undo, or easy to misunderstand. The plan comes as a message."""
_REVIEW = """\
Answer a plan that was submitted to you. Approve it only if you would do it so yourself; otherwise reject it and say \
in feedback exactly what to change. Approving covers this plan and nothing else."""
_REPORT = """\
End your assignment with your final report to whoever gave it to you. status: done - finished and checked; failed - it \
cannot be done; blocked - you need something that you cannot get. In result: what you did, the files you changed, how \
you checked it and what came out, what is left. Complete your task on the board first. Your turn ends with this."""


class _Submit(ToolInput):
    plan: str = Field(min_length=1, description="The plan, whole, in Markdown")
    options: tuple[str, ...] = Field(default=(), max_length=8, description="Alternatives to choose from")


class _RequestPlan(ToolInput):
    teammate: str = Field(validation_alias=AliasChoices("teammate", "to"))
    task: str = Field(min_length=1, description="The piece of work that needs a plan, with all it must know")


class _Review(ToolInput):
    request_id: str
    approve: bool
    feedback: str = Field(default="", description="Needed to reject: what to change")
    option: int = Field(default=0, ge=0, description="The number of the option you approve; 0: the plan as it stands")


class _Report(ToolInput):
    status: Literal["done", "failed", "blocked"]
    result: str = Field(min_length=1, description="The report, whole")


def plan_tools() -> tuple[Tool, ...]:
    """Return `submit_plan`, `request_plan`, `review_plan` and `report`."""
    return (
        SubmitPlan(),
        store_tool("request_plan", _REQUEST, _RequestPlan, _request_plan),
        store_tool("review_plan", _REVIEW, _Review, _review_plan),
        store_tool("report", _REPORT, _Report, _report, concurrency="exclusive"),
    )


@dataclass(frozen=True, slots=True)
class SubmitPlan:
    """`submit_plan`: a store tool that also reads the commit on which its plan is based."""

    spec: ToolSpec = ToolSpec("submit_plan", _SUBMIT, schema_of(_Submit), "store", barrier=True)

    def key(self, tool_input: Json, folders: Folders) -> str:
        """Return an empty key: the row has its own guard."""
        return ""

    async def prepare(self, tool_input: Json, context: CallContext) -> Json:
        """Refuse an invalid input before the start is recorded."""
        read_input(_Submit, tool_input)
        return {}

    async def run(self, tool_input: Json, context: CallContext) -> ToolOutcome:
        """Submit the plan. Raises `ToolRefused`."""
        return _submit_plan(read_input(_Submit, tool_input), context, await context.commit())

    async def repair(self, tool_input: Json, marks: Json, context: CallContext) -> ToolOutcome | None:
        """Run the call again: without a result it has had no effect."""
        return None


def _held(context: CallContext) -> list[Task]:
    return task_rules.held_by(task_rules.by_id(context.board.tasks()), Holder(context.spec.name, context.incarnation))


def _submit_plan(arguments: _Submit, context: CallContext, base: str) -> ToolOutcome:
    if context.spec.kind == "lead" and context.spec.permission_mode != "plan" and not context.spec.plan_required:
        raise ToolRefused("you are not in plan mode, so there is no plan to approve: do the work, or say what you plan")
    if not arguments.plan.strip():
        raise ToolRefused("plan: it is empty")
    if any(not option.strip() for option in arguments.options):
        raise ToolRefused("options: one is empty")
    request = _plan_request(arguments, context, base)
    gate = GateSet(
        at=context.now,
        gate="pending",
        request_id=request.id,
        digest=request.digest,
        plan=arguments.plan,
        task=request.payload["task_id"] or "",
    )
    writes: list[Write] = [Put(request_key(context.session, request.id), request.encode(), 0)]
    if "lead" in request.may_answer and (lead := context.board.agent("lead")):
        about: Json = {"id": request_envelope_id(request.id, "lead"), "request_id": request.id}
        writes.append(envelope(context, lead[0], "plan_approval_request", _for_lead(request), **about))
    approvers = " or ".join(name for name in request.may_answer if name != "policy")
    text = (
        f"Plan submitted as {request.id} (revision {request.revision}). It waits for {approvers}. "
        "Until the answer comes, nothing else runs."
    )
    return ToolOutcome(text, writes=tuple(writes), events=(gate,), data={"request_id": request.id})


def _plan_request(arguments: _Submit, context: CallContext, base: str) -> Request:
    held = _held(context)
    bound = PlanBinding(held[0].id if held else None, context.assignment, str(context.folders.root), base)
    earlier = [previous for previous in context.board.requests() if _is_own(previous, context)]
    for previous in earlier:
        if previous.status == "pending":
            raise ToolRefused(f"your plan {previous.id} still waits for an answer")
    payload = payload_of(arguments.plan, arguments.options, bound)
    request = Request(
        id=short_id("req", context.call),
        kind="plan",
        asked_by=context.spec.name,
        incarnation=context.incarnation,
        may_answer=_approvers(context),
        subject=subject_of(arguments.plan),
        payload=payload,
        revision=max((previous.revision for previous in earlier if same_work(previous, bound)), default=0) + 1,
        escalation=_escalation(context),
        created_at=context.now,
        expires_at=None if context.spec.plan_deadline is None else context.now + context.spec.plan_deadline,
        cause=context.authority,
    )
    return requests.open_request(request)


def _is_own(request: Request, context: CallContext) -> bool:
    is_own = (request.asked_by, request.incarnation) == (context.spec.name, context.incarnation)
    return request.kind == "plan" and is_own


def _escalation(context: CallContext) -> Literal["refuse", "person", "policy"]:
    """Return the approver that is added at the deadline. An agent never replaces the user."""
    if context.spec.plan_on_deadline == "refuse":
        return "refuse"
    return "policy" if context.spec.kind == "lead" or context.spec.plan_approver != "lead" else "person"


def _approvers(context: CallContext) -> tuple[str, ...]:
    """Return the approvers.

    Only the user approves the lead's own plan, whatever the setting: no agent approves its own plan.
    """
    if context.spec.kind == "lead":
        return ("person", "policy")
    return {
        "person": ("person", "policy"),
        "lead": ("lead", "policy"),
        "either": ("person", "lead", "policy"),
    }[context.spec.plan_approver]


def _for_lead(request: Request) -> str:
    lines = [str(request.payload["plan"])]
    if options := options_of(request):
        lines += ["", "Options:", *(f"{number}. {option}" for number, option in enumerate(options, 1))]
    base = str(request.payload["base"])[:COMMIT_DIGITS]
    where = f"Folder {request.payload['folder']}{f', commit {base}' if base else ''}; revision {request.revision}."
    return "\n".join([*lines, "", where, f"Answer with review_plan, request_id {request.id}."])


def _request_plan(arguments: _RequestPlan, context: CallContext) -> ToolOutcome:
    row = teammate(context, arguments.teammate)
    if not arguments.task.strip():
        raise ToolRefused("task: say what the plan is for")
    write = envelope(context, row, "plan_request", arguments.task, metadata={"gate": "required"})
    text = f"Asked {row.name} for a plan. It reads only until one is approved; the plan comes as a message."
    return ToolOutcome(text, writes=(write,), data={"teammate": row.name})


def _review_plan(arguments: _Review, context: CallContext) -> ToolOutcome:
    old, revision = _plan(arguments.request_id, context)
    if not arguments.approve and not arguments.feedback.strip():
        raise ToolRefused("feedback: say what to change when you reject a plan")
    status = "approved" if arguments.approve else "rejected"
    if arguments.approve and context.spec.permission_mode == "plan":
        raise ToolRefused("you are in plan mode yourself: hand in your own plan first, then approve those of the team")
    me = context.spec.name
    now = context.now
    new = requests.answer(old, "plan", by=me, status=status, reason=arguments.feedback, now=now)
    if isinstance(new, Request):
        new = apply_answer_details(old, new, AnswerDetails(arguments.option), by=me, now=now)
    if isinstance(new, requests.AnswerRefusal):
        updated = requests.with_refusal(old, me, new, now)
        note = (Put(request_key(context.session, old.id), updated.encode(), revision),) if updated else ()
        return ToolOutcome(new.text, is_error=True, writes=note)
    writes: list[Write] = [Put(request_key(context.session, new.id), new.encode(), revision)]
    asker = context.board.agent(new.asked_by)
    if asker is not None and asker[0].incarnation == new.incarnation:
        envelope_id = request_envelope_id(new.id, context.spec.name)
        about: Json = {"request_id": new.id, "reply_to": envelope_id, "metadata": {"status": status}}
        writes.append(envelope(context, asker[0], "plan_approval_response", arguments.feedback, **about))
    chosen = f", option {arguments.option}: {new.choice}" if new.choice else ""
    text = f"{new.asked_by}'s plan {new.id} is {status}{chosen}."
    return ToolOutcome(text, writes=tuple(writes), data={"request_id": new.id, "status": status})


def _plan(request_id: str, context: CallContext) -> tuple[Request, int]:
    entry = context.board.request(request_id)
    if entry is None:
        waiting = [
            request.id
            for request in context.board.requests()
            if request.status == "pending"
            and request.kind == "plan"
            and not requests.may_answer(request, context.spec.name)
        ]
        raise ToolRefused(f"no request {request_id}; plans that wait for you: {', '.join(waiting) or 'none'}")
    return entry


def _report(arguments: _Report, context: CallContext) -> ToolOutcome:
    if not arguments.result.strip():
        raise ToolRefused("result: the report is empty")
    held = _held(context)
    if arguments.status == "done" and held:
        raise ToolRefused(f"{held[0].id} is still in your hands: complete_task first, or report failed or blocked")
    writes: list[Write] = []
    events: list[TaskHeld | Reported] = []
    for task in held:
        writes.append(_closed_task(task, arguments, context))
        events.append(TaskHeld(at=context.now, task=task.id, subject=task.subject, held=False))
    to = context.spec.parent or "lead"
    if (row := context.board.agent(to)) is not None:
        metadata: Json = {"status": arguments.status, "tasks": [task.id for task in held]}
        about: Json = {"metadata": metadata, "reply_to": context.assignment or None}
        writes.append(envelope(context, row[0], "result", arguments.result, **about))
    events.append(Reported(at=context.now, status=arguments.status, result=arguments.result))
    note = f" {', '.join(task.id for task in held)}: {_GIVEN_UP[arguments.status]}." if held else ""
    text = f"Report sent to {to}.{note}"
    return ToolOutcome(
        text, writes=tuple(writes), events=tuple(events), ends_turn=True, data={"status": arguments.status}
    )


_GIVEN_UP = {"failed": "failed", "blocked": "back on the board"}


def _closed_task(task: Task, arguments: _Report, context: CallContext) -> Put:
    """Return the row of a task of the reporter, failed or freed with the report.

    After its report an agent owns no task.
    """
    entry = context.board.task(task.id)
    revision = entry[1] if entry else 0
    me = Holder(context.spec.name, context.incarnation)
    act = task_rules.fail if arguments.status == "failed" else task_rules.release
    return put_task(context, act(task, me, context.now, arguments.result), revision)

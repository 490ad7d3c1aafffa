"""Plans and reports: submit one, ask a teammate for one, answer one, and the final report on an assignment.

An approval is a change of the request's row; the envelope that tells of it only rings the bell. A report never leaves
a task in the hands of an agent that is done.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from pydantic import Field

from callboard.adapters.tools.mail import envelope, teammate
from callboard.adapters.tools.store_tool import Input, read_input, schema_of, store_tool
from callboard.adapters.tools.task_rows import put_task
from callboard.core.asking import requests
from callboard.core.asking.plans import SHOWN, Bound, Word, options_of, payload_of, same_work, subject_of, with_word
from callboard.core.names import request_envelope_id, request_key, short_id
from callboard.core.tasks import laws as tasks
from callboard.core.tasks.laws import Holder
from callboard.ports.store import Put, Write
from callboard.ports.tool import Tool, ToolContext, ToolOutcome, ToolSpec
from callboard.words.errors import ToolRefused
from callboard.words.events import GateSet, Reported, TaskHeld
from callboard.words.values import Json, Request, Task

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


class _Submit(Input):
    plan: str = Field(min_length=1, description="The plan, whole, in Markdown")
    options: tuple[str, ...] = Field(default=(), max_length=8, description="Alternatives to choose from")


class _RequestPlan(Input):
    teammate: str
    task: str = Field(min_length=1, description="The piece of work that needs a plan, with all it must know")


class _Review(Input):
    request_id: str
    approve: bool
    feedback: str = Field(default="", description="Needed to reject: what to change")
    option: int = Field(default=0, ge=0, description="The number of the option you approve; 0: the plan as it stands")


class _Report(Input):
    status: Literal["done", "failed", "blocked"]
    result: str = Field(min_length=1, description="The report, whole")


def plan_tools() -> tuple[Tool, ...]:
    """`submit_plan`, `request_plan`, `review_plan` and `report`."""
    return (
        SubmitPlan(),
        store_tool("request_plan", _REQUEST, _RequestPlan, _request_plan),
        store_tool("review_plan", _REVIEW, _Review, _review_plan),
        store_tool("report", _REPORT, _Report, _report),
    )


@dataclass(frozen=True, slots=True)
class SubmitPlan:
    """`submit_plan`: a tool of the store that also looks which commit its plan is based on."""

    spec: ToolSpec = ToolSpec("submit_plan", _SUBMIT, schema_of(_Submit), "store", barrier=True)

    def key(self, given: Json) -> str:
        """Its row guards itself."""
        return ""

    async def prepare(self, given: Json, context: ToolContext) -> Json:
        """Refuse a wrong input before the start is recorded."""
        read_input(_Submit, given)
        return {}

    async def run(self, given: Json, context: ToolContext) -> ToolOutcome:
        """Put the plan up. Raises `ToolRefused`."""
        return _submit_plan(read_input(_Submit, given), context, await context.commit())

    async def repair(self, given: Json, marks: Json, context: ToolContext) -> ToolOutcome | None:
        """Nothing was done that its result does not tell: run it anew."""
        return None


def _held(context: ToolContext) -> list[Task]:
    return tasks.held_by(tasks.by_id(context.board.tasks()), Holder(context.spec.name, context.incarnation))


def _submit_plan(given: _Submit, context: ToolContext, base: str) -> ToolOutcome:
    if not given.plan.strip():
        raise ToolRefused("plan: it is empty")
    if any(not option.strip() for option in given.options):
        raise ToolRefused("options: one is empty")
    request = _plan_request(given, context, base)
    gate = GateSet(
        at=context.now,
        gate="pending",
        request_id=request.id,
        digest=request.digest,
        plan=given.plan,
        task=request.payload["task_id"] or "",
    )
    writes: list[Write] = [Put(request_key(context.session, request.id), request.encode(), 0)]
    if "lead" in request.may_answer and (lead := context.board.agent("lead")):
        about: Json = {"id": request_envelope_id(request.id, "lead"), "request_id": request.id}
        writes.append(envelope(context, lead[0], "plan_approval_request", _for_lead(request), **about))
    who = " or ".join(name for name in request.may_answer if name != "policy")
    text = (
        f"Plan submitted as {request.id} (revision {request.revision}). It waits for {who}. "
        "Until the answer comes, nothing else runs."
    )
    return ToolOutcome(text, writes=tuple(writes), events=(gate,), data={"request_id": request.id})


def _plan_request(given: _Submit, context: ToolContext, base: str) -> Request:
    held = _held(context)
    bound = Bound(held[0].id if held else None, context.assignment, str(context.folders.root), base)
    earlier = [asked for asked in context.board.requests() if _is_mine(asked, context)]
    for asked in earlier:
        if asked.status == "pending":
            raise ToolRefused(f"your plan {asked.id} still waits for an answer")
    payload = payload_of(given.plan, given.options, bound)
    request = Request(
        id=short_id("req", context.call),
        kind="plan",
        asked_by=context.spec.name,
        incarnation=context.incarnation,
        may_answer=_approvers(context),
        subject=subject_of(given.plan),
        payload=payload,
        revision=max((asked.revision for asked in earlier if same_work(asked, bound)), default=0) + 1,
        escalation=_escalation(context),
        created_at=context.now,
        expires_at=context.now + context.spec.plan_deadline,
        cause=context.authority,
    )
    return requests.asked(request)


def _is_mine(asked: Request, context: ToolContext) -> bool:
    mine = (asked.asked_by, asked.incarnation) == (context.spec.name, context.incarnation)
    return asked.kind == "plan" and mine


def _escalation(context: ToolContext) -> Literal["refuse", "person", "policy"]:
    """Who is asked as well at the deadline. What is the person's to approve is never put to an agent instead."""
    if context.spec.plan_on_deadline == "refuse":
        return "refuse"
    return "policy" if context.spec.kind == "lead" or context.spec.plan_approver != "lead" else "person"


def _approvers(context: ToolContext) -> tuple[str, ...]:
    """Who may answer. The lead's own plan is the person's, whatever the setting: nobody approves himself."""
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
    base = str(request.payload["base"])[:SHOWN]
    where = f"Folder {request.payload['folder']}{f', commit {base}' if base else ''}; revision {request.revision}."
    return "\n".join([*lines, "", where, f"Answer with review_plan, request_id {request.id}."])


def _request_plan(given: _RequestPlan, context: ToolContext) -> ToolOutcome:
    row = teammate(context, given.teammate)
    if not given.task.strip():
        raise ToolRefused("task: say what the plan is for")
    write = envelope(context, row, "plan_request", given.task, metadata={"gate": "required"})
    text = f"Asked {row.name} for a plan. It reads only until one is approved; the plan comes as a message."
    return ToolOutcome(text, writes=(write,), data={"teammate": row.name})


def _review_plan(given: _Review, context: ToolContext) -> ToolOutcome:
    old, revision = _plan(given.request_id, context)
    if not given.approve and not given.feedback.strip():
        raise ToolRefused("feedback: say what to change when you reject a plan")
    status = "approved" if given.approve else "rejected"
    me, now = context.spec.name, context.now
    new = requests.answer(old, "plan", me, status, given.feedback, now)
    if isinstance(new, Request):
        new = with_word(old, new, Word(given.option), me, now)
    if isinstance(new, requests.Refusal):
        kept = requests.refused(old, me, new, now)
        note = (Put(request_key(context.session, old.id), kept.encode(), revision),) if kept else ()
        return ToolOutcome(new.text, is_error=True, writes=note)
    writes: list[Write] = [Put(request_key(context.session, new.id), new.encode(), revision)]
    asker = context.board.agent(new.asked_by)
    if asker is not None and asker[0].incarnation == new.incarnation:
        asked = request_envelope_id(new.id, context.spec.name)
        about: Json = {"request_id": new.id, "reply_to": asked, "metadata": {"status": status}}
        writes.append(envelope(context, asker[0], "plan_approval_response", given.feedback, **about))
    chosen = f", option {given.option}: {new.choice}" if new.choice else ""
    text = f"{new.asked_by}'s plan {new.id} is {status}{chosen}."
    return ToolOutcome(text, writes=tuple(writes), data={"request_id": new.id, "status": status})


def _plan(request_id: str, context: ToolContext) -> tuple[Request, int]:
    found = context.board.request(request_id)
    if found is None:
        waiting = [
            asked.id
            for asked in context.board.requests()
            if asked.status == "pending" and asked.kind == "plan" and not requests.may_answer(asked, context.spec.name)
        ]
        raise ToolRefused(f"no request {request_id}; plans that wait for you: {', '.join(waiting) or 'none'}")
    return found


def _report(given: _Report, context: ToolContext) -> ToolOutcome:
    if not given.result.strip():
        raise ToolRefused("result: the report is empty")
    held = _held(context)
    if given.status == "done" and held:
        raise ToolRefused(f"{held[0].id} is still in your hands: complete_task first, or report failed or blocked")
    writes: list[Write] = []
    events: list[TaskHeld | Reported] = []
    for task in held:
        writes.append(_given_up(task, given, context))
        events.append(TaskHeld(at=context.now, task=task.id, subject=task.subject, held=False))
    to = context.spec.parent or "lead"
    if (row := context.board.agent(to)) is not None:
        metadata: Json = {"status": given.status, "tasks": [task.id for task in held]}
        about: Json = {"metadata": metadata, "reply_to": context.assignment or None}
        writes.append(envelope(context, row[0], "result", given.result, **about))
    events.append(Reported(at=context.now, status=given.status, result=given.result))
    left = f" {', '.join(task.id for task in held)}: {_GIVEN_UP[given.status]}." if held else ""
    text = f"Report sent to {to}.{left}"
    return ToolOutcome(text, writes=tuple(writes), events=tuple(events), ends_turn=True, data={"status": given.status})


_GIVEN_UP = {"failed": "failed", "blocked": "back on the board"}


def _given_up(task: Task, given: _Report, context: ToolContext) -> Put:
    """What is in the reporter's hands is failed or freed with the report: an agent that is done holds nothing."""
    found = context.board.task(task.id)
    revision = found[1] if found else 0
    me = Holder(context.spec.name, context.incarnation)
    act = tasks.fail if given.status == "failed" else tasks.release
    return put_task(context, act(task, me, context.now, given.result), revision)

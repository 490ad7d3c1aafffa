"""Workflow step that runs an agent once, finds it again after a crash, and checks the type of its answer."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import anyio

from callboard.core.budgets.tree import narrower
from callboard.sdk.errors import AgentFailed, WrongResult
from callboard.sdk.results import TypedResult, retry_prompt
from callboard.sdk.workflows.journal import FlowJournal, digest_of
from callboard.sessions.hosted import HostedSession, Work
from callboard.types.hook_answers import GoOn, SubagentStop
from callboard.types.records import Budget
from callboard.types.workflows import WorkflowNoted

_ENDS = {"limit": "reached its limit before it was done", "stopped": "was stopped before it was done"}


class StepContext(Protocol):
    """Dependencies of a step: the parts of its run."""

    session: HostedSession
    journal: FlowJournal
    agents: set[str]
    failing: bool


@dataclass(frozen=True, slots=True)
class AgentCall:
    """Request of a workflow for the work of an agent."""

    step: str
    agent_type: str
    prompt: str
    form: TypedResult[Any] | None
    label: str
    model: str
    budget: Budget
    tries: int

    @property
    def digest(self) -> str:
        """Return the digest of the fields that identify this call."""
        schema = self.form.schema if self.form else None
        return digest_of(self.agent_type, self.prompt, schema, self.model)


async def run_agent(around: StepContext, call: AgentCall, remaining: Callable[[], Budget]) -> Any:
    """Run an agent and return its final text, or the value parsed from it. `remaining` returns the rest of the run's
    budget."""
    journal = around.journal
    stored = journal.meet(call.step, "agent", call.digest)
    if stored is not None and stored.agent:
        around.agents.add(stored.agent)
    if stored is not None and stored.t == "ended":
        return _value(call, stored.value)
    if stored is not None and stored.t == "failed":
        raise _failed(call, str(stored.value["outcome"]), str(stored.value["text"]))
    attempt = 0
    wrongs = list[str]()
    prompt = _prompt(call)
    while True:
        attempt += 1
        # After `--redo` it is another agent: the one before had its say.
        origin = f"{journal.row.id}/{call.step}/{attempt}/{journal.redone(call.step)}"
        budget = narrower(call.budget, remaining())
        work = Work(origin, call.agent_type, prompt, call.label, call.model, budget)
        record = WorkflowNoted(
            at=time.time(),
            t="began",
            step=call.step,
            kind="agent",
            digest=call.digest,
            label=call.label,
            agent=work.agent,
            again=True,
        )
        await journal.began(record, stored)
        around.agents.add(work.agent)
        outcome, text = await _done(around, work, call, wrongs)
        if outcome != "done":
            await journal.failed(record, outcome, {"outcome": outcome, "text": text})
            raise _failed(call, outcome, text)
        value, wrong = (text, "") if call.form is None else call.form.read(text)
        if not wrong:
            plain = text if call.form is None else call.form.adapter.dump_python(value, mode="json")
            await journal.ended(record, plain)
            return value
        wrongs.append(wrong)  # what was sent back counts too: each answer once, so that this ends
        if len(wrongs) > call.tries:
            message = f"step {call.step}: {work.agent} gave no answer that fits, in {len(wrongs)} tries: {wrong}"
            await journal.failed(record, message, {"outcome": "wrong", "text": text})
            raise WrongResult(message, wrongs, text)
        prompt = f"{_prompt(call)}\n\nAn earlier answer was:\n{text}\n\nIt does not fit: {wrong}. Answer anew."


async def _done(around: StepContext, work: Work, call: AgentCall, wrongs: list[str]) -> tuple[str, str]:
    """Wait for the agent's end. An invalid answer is returned to the agent before it ends. If another part of the
    workflow fails, the agent is ended."""
    form = call.form

    def fits(event: SubagentStop) -> GoOn | None:
        wrong = form.read(event.text)[1] if form is not None and event.by.name == work.agent else ""
        if not wrong or len(wrongs) >= call.tries:
            return None
        wrongs.append(wrong)
        return GoOn(retry_prompt(wrong))

    hook = around.session.hooks.add("SubagentStop", fits, source="builtin") if form is not None else None
    try:
        return await around.session.work(work)
    except anyio.get_cancelled_exc_class():
        if around.failing:
            with anyio.CancelScope(shield=True):
                await around.session.command("stop", to=work.agent)
        raise
    finally:
        if hook is not None:
            hook.remove()


def _prompt(call: AgentCall) -> str:
    return call.prompt if call.form is None else f"{call.prompt}\n\n{call.form.words()}"


def _failed(call: AgentCall, outcome: str, text: str) -> AgentFailed | WrongResult:
    if outcome == "wrong":
        return WrongResult(f"step {call.step}: no answer fits", (), text)
    suffix = f": {text}" if text else ""
    return AgentFailed(f"step {call.step} ({call.label}) {_ENDS.get(outcome, 'failed')}{suffix}", outcome, text)


def _value(call: AgentCall, plain: Any) -> Any:
    return plain if call.form is None else call.form.adapter.validate_python(plain)

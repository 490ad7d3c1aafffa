"""A step of a workflow that is an agent: run once, found again after a crash, its answer held to a type."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import anyio

from callboard.api.errors import AgentFailed, WrongResult
from callboard.api.results import Wanted, again
from callboard.api.workflows.journal import FlowJournal, digest_of
from callboard.app import Session as HostedSession
from callboard.core.budget.tree import narrower
from callboard.words.hooks import GoOn, SubagentStop
from callboard.words.values import Budget
from callboard.words.workflows import WorkflowNoted
from callboard.working import Work

_ENDS = {"limit": "reached its limit before it was done", "stopped": "was stopped before it was done"}


class Around(Protocol):
    """What the step needs of its run."""

    here: HostedSession
    journal: FlowJournal
    agents: set[str]
    failing: bool


@dataclass(frozen=True, slots=True)
class AgentCall:
    """What is asked for."""

    step: str
    agent_type: str
    prompt: str
    wanted: Wanted[Any] | None
    label: str
    model: str
    budget: Budget
    tries: int

    @property
    def digest(self) -> str:
        """Of what makes it this piece of work, and no other."""
        schema = self.wanted.schema if self.wanted else None
        return digest_of(self.agent_type, self.prompt, schema, self.model)


async def run_agent(around: Around, call: AgentCall, rest: Callable[[], Budget]) -> Any:
    """What the agent came to: its last words, or the value that they are. `rest`: what the run has left."""
    journal = around.journal
    known = journal.meet(call.step, "agent", call.digest)
    if known is not None and known.agent:
        around.agents.add(known.agent)
    if known is not None and known.t == "ended":
        return _value(call, known.value)
    if known is not None and known.t == "failed":
        raise _failed(call, str(known.value["outcome"]), str(known.value["text"]))
    attempt, wrongs, prompt = 0, list[str](), _prompt(call)
    while True:
        attempt += 1
        # After `--redo` it is another agent: the one before had its say.
        origin = f"{journal.row.id}/{call.step}/{attempt}/{journal.redone(call.step)}"
        budget = narrower(call.budget, rest())
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
        await journal.began(record, known)
        around.agents.add(work.agent)
        outcome, text = await _done(around, work, call, wrongs)
        if outcome != "done":
            await journal.failed(record, outcome, {"outcome": outcome, "text": text})
            raise _failed(call, outcome, text)
        value, wrong = (text, "") if call.wanted is None else call.wanted.read(text)
        if not wrong:
            plain = text if call.wanted is None else call.wanted.adapter.dump_python(value, mode="json")
            await journal.ended(record, plain)
            return value
        wrongs.append(wrong)  # what was sent back counts too: each answer once, so that this ends
        if len(wrongs) > call.tries:
            told = f"step {call.step}: {work.agent} gave no answer that fits, in {len(wrongs)} tries: {wrong}"
            await journal.failed(record, told, {"outcome": "wrong", "text": text})
            raise WrongResult(told, wrongs, text)
        prompt = f"{_prompt(call)}\n\nAn earlier answer was:\n{text}\n\nIt does not fit: {wrong}. Answer anew."


async def _done(around: Around, work: Work, call: AgentCall, wrongs: list[str]) -> tuple[str, str]:
    """Wait for the agent's end. An answer that does not fit is sent back before the agent has ended. Ended with it: an
    agent that goes on for a part of the workflow that has failed."""
    wanted = call.wanted

    def fits(event: SubagentStop) -> GoOn | None:
        wrong = wanted.read(event.text)[1] if wanted is not None and event.by.name == work.agent else ""
        if not wrong or len(wrongs) >= call.tries:
            return None
        wrongs.append(wrong)
        return GoOn(again(wrong))

    hook = around.here.hooks.add("SubagentStop", fits, source="builtin") if wanted is not None else None
    try:
        return await around.here.work(work)
    except anyio.get_cancelled_exc_class():
        if around.failing:
            with anyio.CancelScope(shield=True):
                await around.here.command("stop", to=work.agent)
        raise
    finally:
        if hook is not None:
            hook.remove()


def _prompt(call: AgentCall) -> str:
    return call.prompt if call.wanted is None else f"{call.prompt}\n\n{call.wanted.words()}"


def _failed(call: AgentCall, outcome: str, text: str) -> AgentFailed | WrongResult:
    if outcome == "wrong":
        return WrongResult(f"step {call.step}: no answer fits", (), text)
    said = f": {text}" if text else ""
    return AgentFailed(f"step {call.step} ({call.label}) {_ENDS.get(outcome, 'failed')}{said}", outcome, text)


def _value(call: AgentCall, plain: Any) -> Any:
    return plain if call.wanted is None else call.wanted.adapter.validate_python(plain)

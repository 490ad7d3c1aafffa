"""Tools about the agent's own run: compact its context, ask the person, give work to a subagent.

`ask_person` does not wait: the answer comes as mail, so that a question outlives the process. `task` waits for its
subagent and finds it again after a crash, since the subagent's id follows from the call.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from pydantic import Field

from callboard.adapters.tools.granting import Grant, granted
from callboard.adapters.tools.store_tool import Input, read_input, schema_of, store_tool
from callboard.core.asking.requests import asked
from callboard.core.names import request_key, short_id, subagent_suffix
from callboard.core.toolset import tools_for
from callboard.ports.store import Put
from callboard.ports.tool import Tool, ToolContext, ToolOutcome, ToolSpec
from callboard.words.errors import ToolRefused
from callboard.words.events import CompactAsked
from callboard.words.specs import AgentSpec
from callboard.words.values import Json, Request

_COMPACT = """\
Summarise your conversation so far and go on with the summary. Call it when the context is long or cluttered and a \
sub-goal is finished: what you still need is kept, tool results are let go. In focus, say what the summary must not \
lose. Todos, tasks, the plan and the team are kept exactly whatever you say. All other calls of the reply run first."""
_ASK = """\
Ask the person something that only they can decide: a preference, a missing fact, a risk to accept. Find out by \
yourself whatever the workspace can tell. Offer options where you can, your recommendation first. The answer comes as \
a message later; go on with what does not depend on it, or end your turn: the answer wakes you."""
_TASK = """\
Give one self-contained piece of work to a fresh subagent and get its final text as the result. It sees nothing of \
your conversation: put everything it needs into prompt - the goal, the paths, what to return and how long. Good for \
searching and reading much to learn little, and for independent pieces: several calls in one reply run at once. It \
cannot ask back and starts nobody. Read its answer as a colleague's report: check what you build upon. For work that \
goes on, or needs messages, spawn a teammate."""


class _Compact(Input):
    focus: str = Field(default="", description="What the summary must keep, beside what it always keeps")


class _Ask(Input):
    question: str = Field(min_length=1, description="One question, whole, with what is needed to answer it")
    options: tuple[str, ...] = Field(default=(), max_length=8, description="Answers to choose from, the best first")


class _Task(Input):
    description: str = Field(min_length=1, description="Three to six words for the screen: 'Find the retry code'")
    prompt: str = Field(min_length=1, description="All that the subagent needs to know, and what it must return")
    agent_type: str = Field(default="general", description="Which type of agent")
    budget: Grant = Field(default=Grant(), description="What it may use in all; left out: as much as you")


def control_tools(types: Mapping[str, str] | None = None) -> tuple[Tool, ...]:
    """`compact`, `ask_person` and `task`. `types`: the agent types and when to use each, for the model to read."""
    spec = ToolSpec(
        "task", _TASK + listed(types), schema_of(_Task), effect="attach", concurrency="shared", seconds=None
    )
    return (
        store_tool("compact", _COMPACT, _Compact, _compact, effect="read"),
        store_tool("ask_person", _ASK, _Ask, _ask_person),
        SubagentTool(spec),
    )


def listed(types: Mapping[str, str] | None) -> str:
    """The agent types as the end of a description, in a fixed order; nothing when none are given."""
    lines = [f"- {name}: {' '.join(when.split())}" for name, when in sorted((types or {}).items())]
    return "\n\nAgent types:\n" + "\n".join(lines) if lines else ""


def _compact(given: _Compact, context: ToolContext) -> ToolOutcome:
    return ToolOutcome("[Compaction follows]", events=(CompactAsked(at=context.now, focus=given.focus),))


def _ask_person(given: _Ask, context: ToolContext) -> ToolOutcome:
    wait = context.spec.ask_deadline
    if wait == 0:
        raise ToolRefused("nobody can answer in this run: decide yourself, and say in your result what you assumed")
    payload: Json = {"question": given.question, "options": list(given.options)}
    request = asked(
        Request(
            id=short_id("req", context.call),
            kind="question",
            asked_by=context.spec.name,
            incarnation=context.incarnation,
            may_answer=("person",),
            subject=given.question.strip().splitlines()[0] if given.question.strip() else "",
            payload=payload,
            escalation="policy",
            cause=context.authority,
            created_at=context.now,
            expires_at=None if wait is None else context.now + wait,
        )
    )
    if not request.subject:
        raise ToolRefused("question: it is empty")
    write = Put(request_key(context.session, request.id), request.encode(), 0)
    text = f"Question {request.id} is put to the person. The answer comes as a message."
    return ToolOutcome(text, writes=(write,), data={"request_id": request.id})


@dataclass(frozen=True, slots=True)
class SubagentTool:
    """`task`: runs a subagent to its end. The same call is always the same subagent."""

    spec: ToolSpec

    def key(self, given: Json) -> str:
        """Subagents run beside each other."""
        return ""

    async def prepare(self, given: Json, context: ToolContext) -> Json:
        """Refuse an unknown type, and a subagent that wants one of its own, before the start is recorded."""
        read = read_input(_Task, given)
        _subagent_spec(read, context)
        return {}

    async def run(self, given: Json, context: ToolContext) -> ToolOutcome:
        """Wait for the subagent's final text. Anything but `done` is told as an error, with what it said."""
        read = read_input(_Task, given)
        spec = granted(_subagent_spec(read, context), read.budget, context)
        if isinstance(spec, ToolOutcome):
            return spec
        outcome, text = await context.spawner.subagent(spec, read.prompt, call=context.call)
        said = text.strip() or "(it said nothing)"
        data: Json = {"agent": spec.name, "outcome": outcome}
        if outcome == "done":
            return ToolOutcome(said, data=data)
        ends = {"limit": "reached its limit before it was done", "stopped": "was stopped before it was done"}
        why = ends.get(outcome, "failed")
        return ToolOutcome(f"[status: {outcome}] The subagent {why}:\n{said}", is_error=True, data=data)

    async def repair(self, given: Json, marks: Json, context: ToolContext) -> ToolOutcome | None:
        """The call again: it finds its subagent, at work or finished."""
        return await self.run(given, context)


def _subagent_spec(given: _Task, context: ToolContext) -> AgentSpec:
    if context.spec.kind == "subagent":
        raise ToolRefused("a subagent cannot start subagents: do it yourself, or return what you found so far")
    name = given.agent_type[:40] + subagent_suffix(context.call)
    spec = context.spawner.spec_for(given.agent_type, name, context.spec)
    tools = tools_for("subagent", spec.tools, memory=bool(spec.memory)).names
    updates = {"kind": "subagent", "parent": context.spec.name, "role": given.description, "tools": tools}
    return spec.model_copy(update={**updates, "plan_required": False, "claims_tasks": False})

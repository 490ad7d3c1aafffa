"""Tools for the agent's own run: compact its context, ask the user, delegate work to a subagent, load a skill.

`ask_person` does not wait: the answer arrives as mail, so that a question outlives the process. `task` waits for its
subagent and finds it again after a crash, because the subagent's id is derived from the call. A subagent in the
background is a background task of its caller, as a command is: the commit of the call's result starts it, and the
engine sends its report (`engine/operations/background.py`).

The input of `task` may contain a budget for the new agent. An agent cannot give more than it has left: a larger budget
is refused with the remaining amount. If a budget above has no room for the new agent, the call is refused with the name
of that budget and its event.

`load_skill` returns the body of a skill whose name and description are in the system prompt. Commands in the body run
before the model reads it, and a skill may run as a subagent. The engine does both (`CallContext.use_skill`), by the id
of the call, so that a call that was cut off finds its subagent again.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping
from contextlib import contextmanager

from pydantic import Field

from callboard.adapters.tools.base import ToolInput, read_input, schema_of, store_tool
from callboard.core.approvals.requests import open_request
from callboard.core.budgets.tree import used_up
from callboard.core.keys import request_key, short_id, subagent_suffix
from callboard.core.skills.substitution import commands_in
from callboard.core.team.subagents import begun_in_background, begun_text, report_text
from callboard.core.tool_access import tools_for
from callboard.ports.store import Put
from callboard.ports.tool import AGENT_TYPES, CallContext, Folders, Tool, ToolOutcome, ToolSpec
from callboard.types.agent_spec import AgentSpec
from callboard.types.errors import ToolRefused
from callboard.types.events import BudgetReached, CompactAsked
from callboard.types.lazy_dataclass import dataclass
from callboard.types.records import Budget, Json, Request

_LOAD = """\
Load a skill: instructions for a kind of work, by the name that the catalogue in your system prompt shows. Load it \
before you begin work that it covers, and follow it. Files that it names are in its folder: read them when you need \
them. Some skills run as a subagent: then you get its answer."""
_CUT = "it was cut off while the commands in its text ran, and what they did is unknown: look, before you load it again"


class Grant(ToolInput):
    """Total limits of the new agent, including all agents that it starts."""

    cost_usd: float | None = Field(default=None, ge=0)
    tokens: int | None = Field(default=None, ge=0, description="Of all its model calls, input and output")
    steps: int | None = Field(default=None, ge=0, description="Model calls")
    seconds: float | None = Field(default=None, ge=0)

    def value(self) -> Budget:
        """Return the limits as a budget."""
        return Budget.model_validate(self.model_dump())


def grant_budget(spec: AgentSpec, grant: Grant, context: CallContext) -> AgentSpec | ToolOutcome:
    """Return the spec of the new agent with its budget, or the refusal as a result. Raises `ToolRefused`."""
    result = context.spawner.grant(spec, grant.value())
    if not isinstance(result, BudgetReached):
        return result
    reason = used_up(result.budget, result.kind, limit=result.limit, spent=result.spent, needed=result.wanted)
    text = f"not started: {reason}. Do it yourself, or say what is left undone"
    return ToolOutcome(text, is_error=True, events=(result,), data={"budget": result.budget, "kind": result.kind})


@contextmanager
def taken_back_on_failure(name: str, context: CallContext) -> Generator[None]:
    """Take back the grant of a new agent if the block fails: budgets must not count an agent that does not exist."""
    try:
        yield
    except BaseException:  # refused or cancelled
        context.spawner.take_back(name)
        raise


_COMPACT = """\
Summarise your conversation so far and go on with the summary. Call it when the context is long or cluttered and a \
sub-goal is finished: what you still need is kept, tool results are let go. In focus, say what the summary must not \
lose. Todos, tasks, the plan and the team are kept exactly whatever you say. All other calls of the reply run first."""
_ASK = """\
Ask the person something that only they can decide: a preference, a missing fact, a risk to accept. Find out by \
yourself whatever the workspace can tell. Offer options where you can, your recommendation first. The answer comes as \
a message later; go on with what does not depend on it, or end your turn: the answer wakes you."""
_ASKS = """\
Ask the person something that only they can decide: a preference, a missing fact, a risk to accept. Find out by \
yourself whatever the workspace can tell. Offer options where you can, your recommendation first. The result is the \
answer."""
_TASK = """\
Give one self-contained piece of work to a fresh subagent and get its final text as the result. It sees nothing of \
your conversation: put everything it needs into prompt - the goal, the paths, what to return and how long. Good for \
searching and reading much to learn little, and for independent pieces: several calls in one reply run at once. It \
cannot ask back and starts nobody. With run_in_background the call returns at once, and the final text comes as a \
message; task_output waits for it, task_stop ends the subagent. Read its answer as a colleague's report: check what \
you build upon. For work that goes on, or needs messages, spawn a teammate."""


class _Compact(ToolInput):
    focus: str = Field(default="", description="What the summary must keep, beside what it always keeps")


class _Ask(ToolInput):
    question: str = Field(min_length=1, description="One question, whole, with what is needed to answer it")
    options: tuple[str, ...] = Field(default=(), max_length=8, description="Answers to choose from, the best first")


class _Task(ToolInput):
    description: str = Field(min_length=1, description="Three to six words for the screen: 'Find the retry code'")
    prompt: str = Field(min_length=1, description="All that the subagent needs to know, and what it must return")
    agent_type: str = Field(default="general", description="Which type of agent")
    budget: Grant = Field(default=Grant(), description="What it may use in all; left out: as much as you")
    run_in_background: bool = Field(
        default=False, description="Return at once and go on; its report comes as a message"
    )


def control_tools(types: Mapping[str, str] | None = None, *, asks_in_call: bool = False) -> tuple[Tool, ...]:
    """Return `compact`, `ask_person` and `task`. `types`: the agent types and when to use each, for the model."""
    spec = ToolSpec(
        "task", _TASK + list_types(types), schema_of(_Task), effect="attach", concurrency="shared", seconds=None
    )
    in_call = ToolSpec("ask_person", _ASKS, schema_of(_Ask), effect="attach", concurrency="shared", seconds=None)
    return (
        store_tool("compact", _COMPACT, _Compact, _compact, effect="read", concurrency="exclusive"),
        AskTool(in_call) if asks_in_call else store_tool("ask_person", _ASK, _Ask, _ask_person),
        SubagentTool(spec),
    )


def list_types(types: Mapping[str, str] | None) -> str:
    """Return the agent types for the end of a description, in a fixed order; empty if there are none."""
    lines = [f"- {name}: {' '.join(when.split())}" for name, when in sorted((types or {}).items())]
    return AGENT_TYPES + "\n".join(lines) if lines else ""


def _compact(arguments: _Compact, context: CallContext) -> ToolOutcome:
    return ToolOutcome("[Compaction follows]", events=(CompactAsked(at=context.now, focus=arguments.focus),))


def _ask_person(arguments: _Ask, context: CallContext) -> ToolOutcome:
    request = _question(arguments, context)
    write = Put(request_key(context.session, request.id), request.encode(), 0)
    text = f"Question {request.id} is put to the person. The answer comes as a message."
    return ToolOutcome(text, writes=(write,), data={"request_id": request.id})


@dataclass(frozen=True, slots=True)
class AskTool:
    """Tool that waits for the answer to its question, for persons who answer through a program."""

    spec: ToolSpec

    def key(self, tool_input: Json, folders: Folders) -> str:
        """Return an empty key: questions do not exclude each other."""
        return ""

    async def prepare(self, tool_input: Json, context: CallContext) -> Json:
        """Refuse an empty question before the start is recorded."""
        _question(read_input(_Ask, tool_input), context)
        return {}

    async def run(self, tool_input: Json, context: CallContext) -> ToolOutcome:
        """Put the question, and return the answer."""
        arguments = read_input(_Ask, tool_input)
        question = _question(arguments, context)
        answer = await context.ask(question.model_copy(update={"payload": {**question.payload, "waits": True}}))
        if answer is None:
            return ToolOutcome("Nobody answered. Decide yourself, and say in your result what you assumed.")
        return ToolOutcome(f"The person answered: {answer}", data={"answers": {arguments.question: answer}})

    async def repair(self, tool_input: Json, marks: Json, context: CallContext) -> ToolOutcome | None:
        """Run the call again: it finds its question, pending or answered."""
        return await self.run(tool_input, context)


def _question(arguments: _Ask, context: CallContext) -> Request:
    wait = context.spec.ask_deadline
    if wait == 0:
        raise ToolRefused("nobody can answer in this run: decide yourself, and say in your result what you assumed")
    payload: Json = {"question": arguments.question, "options": list(arguments.options)}
    request = open_request(
        Request(
            id=short_id("req", context.call),
            kind="question",
            asked_by=context.spec.name,
            incarnation=context.incarnation,
            may_answer=("person",),
            subject=arguments.question.strip().splitlines()[0] if arguments.question.strip() else "",
            payload=payload,
            escalation="policy",
            cause=context.authority,
            created_at=context.now,
            expires_at=None if wait is None else context.now + wait,
        )
    )
    if not request.subject:
        raise ToolRefused("question: it is empty")
    return request


@dataclass(frozen=True, slots=True)
class SubagentTool:
    """`task`: run a subagent, and wait for its end or not. The same call always has the same subagent."""

    spec: ToolSpec

    def key(self, tool_input: Json, folders: Folders) -> str:
        """Return an empty key: subagents run concurrently."""
        return ""

    async def prepare(self, tool_input: Json, context: CallContext) -> Json:
        """Refuse an unknown type, and a call by a subagent, before the start is recorded."""
        read = read_input(_Task, tool_input)
        _type_spec(read, context, read.agent_type)
        return {}

    async def run(self, tool_input: Json, context: CallContext) -> ToolOutcome:
        """Wait for the subagent's final text, unless it runs in the background.

        Any end other than `done` is reported as an error, with the subagent's text.
        """
        read = read_input(_Task, tool_input)
        spec = grant_budget(_subagent_spec(read, context), read.budget, context)
        if isinstance(spec, ToolOutcome):
            return spec
        with taken_back_on_failure(spec.name, context):
            spec = await context.spawner.isolated(spec, call=context.call)
        if read.run_in_background or spec.background:
            return _in_background(spec, read, context)
        ended = await context.spawner.attend(spec, read.prompt, call=context.call)
        if ended is None:
            return _in_background(spec, read, context)
        outcome, text = ended
        data: Json = {"agent": spec.name, "outcome": outcome}
        return ToolOutcome(report_text(outcome, text), is_error=outcome != "done", data=data)

    async def repair(self, tool_input: Json, marks: Json, context: CallContext) -> ToolOutcome | None:
        """Run the call again: it finds its subagent, running or finished."""
        return await self.run(tool_input, context)


def _in_background(spec: AgentSpec, read: _Task, context: CallContext) -> ToolOutcome:
    """Start a subagent in the background, in the commit of the result. Its report arrives as mail."""
    output = str(context.folders.output_of(spec.name))
    began = begun_in_background(spec.name, read.description, output, now=context.now, authority=context.authority)
    writes = context.spawner.subagent_writes(spec, read.prompt, call=context.call, now=context.now)
    data: Json = {"agent": spec.name, "background": True, "output": output}
    return ToolOutcome(begun_text(spec.name), writes=writes, events=(began,), data=data)


def _subagent_spec(arguments: _Task, context: CallContext) -> AgentSpec:
    spec = _type_spec(arguments, context, arguments.agent_type[:40] + subagent_suffix(context.call))
    tools = tools_for("subagent", spec.tools, memory=bool(spec.memory)).names
    updates = {"parent": context.spec.name, "role": arguments.description, "tools": tools}
    return spec.model_copy(update={**updates, "plan_required": False, "claims_tasks": False})


def _type_spec(arguments: _Task, context: CallContext, name: str) -> AgentSpec:
    """Return the spec that the type gives to a subagent of this name."""
    if context.spec.kind == "subagent":
        raise ToolRefused("a subagent cannot start subagents: do it yourself, or return what you found so far")
    return context.spawner.spec_for(arguments.agent_type, name, context.spec, "subagent")


class _Load(ToolInput):
    name: str = Field(min_length=1)
    arguments: str = Field(default="", description="What the skill works on, where it takes arguments")


def skill_tools() -> tuple[Tool, ...]:
    """Return `load_skill`.

    After a crash, its subagent is found again, and commands are not run twice. It runs alone, because a skill changes
    the permissions of the turn, and the commands in its text may do anything.
    """
    spec = ToolSpec("load_skill", _LOAD, schema_of(_Load), effect="attach", seconds=None)
    return (SkillTool(spec),)


@dataclass(frozen=True, slots=True)
class SkillTool:
    """The `load_skill` tool."""

    spec: ToolSpec

    def key(self, tool_input: Json, folders: Folders) -> str:
        """Return an empty key: a skill has no single path."""
        return ""

    async def prepare(self, tool_input: Json, context: CallContext) -> Json:
        """Refuse an invalid input before the start is recorded."""
        read_input(_Load, tool_input)
        return {}

    async def run(self, tool_input: Json, context: CallContext) -> ToolOutcome:
        """Return the skill's text, or its subagent's answer. Raises `ToolRefused`."""
        read = read_input(_Load, tool_input)
        use = await context.use_skill(read.name, read.arguments)
        return ToolOutcome(use.text, is_error=use.is_error, writes=use.writes, events=use.events, data=use.data)

    async def repair(self, tool_input: Json, marks: Json, context: CallContext) -> ToolOutcome | None:
        """Run the call again, unless commands may have run."""
        skill = context.skills.load(read_input(_Load, tool_input).name)
        return ToolOutcome(_CUT, is_error=True) if commands_in(skill.body or "") else None

"""The team's tools: make teammates, write to each other, ask one to stop.

A message to one agent wakes it: a teammate that writes to its lead waits for a word, and nobody else would tell the
lead. A broadcast only queues: it is news for whoever works, not a reason to start fifty agents. Mail is delivered
between steps by the runtime; no tool here returns any.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from pydantic import Field

from callboard.adapters.tools.control import listed
from callboard.adapters.tools.granting import Grant, granted
from callboard.adapters.tools.mail import ENVELOPE_ID, GONE, envelope, full_words, member, team, teammate
from callboard.adapters.tools.store_tool import Input, StoreTool, look_tool, read_input, schema_of, store_tool
from callboard.adapters.tools.task_rows import find_task, holder_of, put_task
from callboard.adapters.tools.worktrees import make_worktree, worktree_for
from callboard.core.asking.requests import asked
from callboard.core.names import request_envelope_id, request_key, short_id
from callboard.core.permission.grammar import left_of
from callboard.core.tasks import laws as tasks
from callboard.core.tasks.wording import task_line
from callboard.core.toolset import tools_for
from callboard.ports.store import Put
from callboard.ports.tool import Tool, ToolContext, ToolOutcome, ToolSpec
from callboard.words.errors import ToolRefused
from callboard.words.specs import AgentSpec
from callboard.words.values import AGENT_NAME, RESERVED_NAMES, AgentRow, Json, Request, Task

SHUTDOWN_SECONDS = 120.0
"""How long a teammate has to end in order before the runtime ends it."""

_SPAWN = """\
Add a teammate: an agent with a name, a role and a mailbox that works beside you, keeps its context, and goes idle \
between pieces of work. It sees nothing of your conversation: put everything it needs into prompt - the goal, the \
files that are its own, what to leave alone, how to tell that it is done. Give two teammates different files. Set \
plan_required when the work is risky or hard to undo: it then reads only until its plan is approved. With task_id the \
task is its own from the start. With worktree it works in a copy of the files, on a branch of its own. Its reports, \
questions and plans come to you as messages and wake you: do not poll, do not ask how far it is. For one question with \
one answer use task instead."""
_LIST = "List the lead and the teammates: role, what each is doing or waiting for, and its task."
_SEND = """\
Write to one agent of the team by name; it reads the message before its next step, and is woken if it is idle. Say \
everything needed in one message; do not send thanks or 'ok'. When you answer a message, put its id into reply_to. \
Your final report goes by report, not by message."""
_BROADCAST = """\
Write to all other agents at once, for news that each of them has to know (a changed interface, a stopped plan). Those \
at work read it before their next step, idle ones when they are next woken."""
_INBOX = "Ask for the delivery of your messages. You need not: they come by themselves before your next step."
_SHUTDOWN = """\
Ask a teammate to finish and stop. It ends what it does, gives back its task, reports, and stops for good. Do this \
when its work is done and checked; an idle teammate costs nothing, so keep those you may need again."""


class _Spawn(Input):
    name: str = Field(description="Lower-case letters, digits and hyphens: 'parser', 'test-writer'")
    role: str = Field(min_length=1, description="A few words, shown to person and team: 'writes the cron parser'")
    prompt: str = Field(min_length=1, description="Its assignment, whole")
    agent_type: str = Field(default="teammate", description="Which type of agent")
    plan_required: bool = Field(default=False, description="Reads only until its plan is approved")
    task_id: str = Field(default="", description="A ready task of the board that becomes its own")
    budget: Grant = Field(default=Grant(), description="What it may use in all; left out: as much as you")
    worktree: str = Field(default="", description="Work in the git worktree of this name, made if there is none")


class _Send(Input):
    to: str = Field(description="The agent's name, as list_team shows it")
    content: str = Field(min_length=1)
    reply_to: str = Field(default="", description="The id of the message that this answers, from its inbox tag")


class _Broadcast(Input):
    content: str = Field(min_length=1)


class _Nothing(Input):
    pass


class _Shutdown(Input):
    teammate: str
    reason: str = Field(default="", description="What it should know before it stops")


def team_tools(types: Mapping[str, str] | None = None) -> tuple[Tool, ...]:
    """The team's tools. `types`: the agent types and when to use each, for the model to read."""
    return (
        _spawn_tool(_SPAWN + listed(types)),
        look_tool("list_team", _LIST, _Nothing, _list_team),
        store_tool("send_message", _SEND, _Send, _send_message),
        store_tool("broadcast", _BROADCAST, _Broadcast, _broadcast),
        look_tool("check_inbox", _INBOX, _Nothing, _check_inbox),
        store_tool("request_shutdown", _SHUTDOWN, _Shutdown, _request_shutdown),
    )


@dataclass(frozen=True, slots=True)
class _SpawnTool(StoreTool[_Spawn]):
    """Also makes the teammate's worktree. The same call finds its own again after a crash, so it may run anew."""

    async def run(self, given: Json, context: ToolContext) -> ToolOutcome:
        """Refuse first, then make the folder; the teammate itself commits with the result. Raises `ToolRefused`."""
        read = read_input(self.given, given)
        isolated = context.spawner.spec_for(read.agent_type, read.name, context.spec).isolation == "worktree"
        name = await worktree_for(read.worktree, read.name, context) if isolated or read.worktree else ""
        outcome = self.act(read.model_copy(update={"worktree": name}), context)
        if name and not outcome.is_error:
            await make_worktree(name, read.name, context)
        return outcome


def _spawn_tool(description: str) -> Tool:
    spec = ToolSpec("spawn_teammate", description, schema_of(_Spawn), "store")
    return _SpawnTool(spec, _Spawn, _spawn_teammate)


def _spawn_teammate(given: _Spawn, context: ToolContext) -> ToolOutcome:
    _refuse_name(given.name, context)
    spec = context.spawner.spec_for(given.agent_type, given.name, context.spec)
    prompt = given.prompt
    if given.task_id:
        prompt += _about_task(given.task_id, context)
        _claimed(given, context)
    spec = granted(_as_teammate(spec, given, context), given.budget, context)
    if isinstance(spec, ToolOutcome):
        return spec
    writes = context.spawner.teammate_writes(spec, prompt, call=context.call, now=context.now)
    if given.task_id:
        writes = (*writes, put_task(context, *_claimed(given, context)))
    text = (
        f"{given.name} ({given.role}) is starting. Its reports, questions and plans come to you as messages and wake "
        "you: there is no need to poll. Go on with your own work, or end your turn."
    )
    if given.worktree:
        text += f" It works in the git worktree {given.worktree}: merge_worktree brings its work into the workspace."
    return ToolOutcome(text, writes=writes, data={"name": given.name, "agent_type": given.agent_type})


def _refuse_name(name: str, context: ToolContext) -> None:
    if name in RESERVED_NAMES:
        raise ToolRefused(f"name: {name!r} is reserved ({', '.join(sorted(RESERVED_NAMES))})")
    if not AGENT_NAME.fullmatch(name):
        raise ToolRefused(
            f"name: {name!r} is not a name: write a lower-case letter, then letters, digits and hyphens, at most 64"
        )
    found = context.board.agent(name)
    if found is not None and found[0].life != "stopped":
        raise ToolRefused(f"name: {name} is in the team already ({found[0].role}): write to it, or take another name")


def _as_teammate(spec: AgentSpec, given: _Spawn, context: ToolContext) -> AgentSpec:
    """Who can change files takes tasks from the board by itself; a reader would take what it cannot finish."""
    tools = left_of(tools_for("teammate", spec.tools).names, spec.rules.deny)
    return spec.model_copy(
        update={
            "name": given.name,
            "kind": "teammate",
            "role": " ".join(given.role.split()),
            "parent": context.spec.name,
            "tools": tools,
            "plan_required": given.plan_required or spec.plan_required,
            "claims_tasks": bool({"edit_file", "write_file"} & set(tools)),
            "worktree": given.worktree,
            "folder": str(context.worktrees.path(given.worktree)) if given.worktree and context.worktrees else "",
        }
    )


def _about_task(task_id: str, context: ToolContext) -> str:
    task, _ = find_task(context, task_id)
    about = f"\n\nYour task on the board: {task.id} {task.subject}"
    if task.description:
        about += f"\n{task.description}"
    return f"{about}\nIt is yours already: complete_task when it is done and checked, then report."


def _claimed(given: _Spawn, context: ToolContext) -> tuple[Task, int]:
    """The task in the new teammate's hands, for the commit that makes the teammate, and the row's revision."""
    task, revision = find_task(context, given.task_id)
    found = context.board.agent(given.name)
    here = holder_of(context)  # it will live in this process
    holder = tasks.Holder(given.name, found[0].incarnation + 1 if found else 1, here.lease, here.lease_number)
    return tasks.claim(task, holder, tasks.by_id(context.board.tasks()), context.now), revision


def _list_team(given: _Nothing, context: ToolContext) -> ToolOutcome:
    board = tasks.by_id(context.board.tasks())
    rows = team(context)
    lines = [_member_line(row, board, context) for row in rows]
    return ToolOutcome("\n".join(lines), data={"team": [row.model_dump(mode="json") for row in rows]})


def _member_line(row: AgentRow, board: tasks.Tasks, context: ToolContext) -> str:
    you = " (you)" if row.name == context.spec.name else ""
    doing = f"waiting for {row.waiting_for}" if row.life == "waiting" and row.waiting_for else row.life
    line = f"{row.name}{you}: {row.role or row.kind} [{doing}]"
    held = tasks.held_by(board, tasks.Holder(row.name, row.incarnation))
    return "\n".join([line, *(f"  {task_line(task, board)}" for task in held)])


def _send_message(given: _Send, context: ToolContext) -> ToolOutcome:
    row = member(context, given.to)
    content, answers = _words(given.content), given.reply_to.strip()
    if answers and not ENVELOPE_ID.fullmatch(answers):
        raise ToolRefused(f'reply_to: {given.reply_to!r} is no id of a message: its inbox tag says id="env_..."')
    load = context.mail_of(row)
    if load.full:
        raise ToolRefused(f"{full_words(row, load)} It was not sent. Do what you can without it, and try again later.")
    text = f"Sent to {row.name}."
    if row.life == "crashed":
        text += " It has crashed: it reads this when it is running again."
    read = context.read.get(row.name)
    about = {"read": read} if read else {}
    write = envelope(context, row, "message", content, reply_to=answers or None, metadata=about)
    return ToolOutcome(text, writes=(write,), data={"to": row.name})


def _broadcast(given: _Broadcast, context: ToolContext) -> ToolOutcome:
    content = _words(given.content)
    others = [row for row in team(context) if row.name != context.spec.name and row.life not in GONE]
    if not others:
        raise ToolRefused("nobody else is in the team")
    loads = {row.name: context.mail_of(row) for row in others}
    full = [full_words(row, loads[row.name]) for row in others if loads[row.name].full]
    open_ = [row for row in others if not loads[row.name].full]
    if not open_:
        raise ToolRefused(" ".join([*full, "It was sent to nobody."]))
    writes = tuple(envelope(context, row, "broadcast", content, wake=False) for row in open_)
    words = [f"Sent to {', '.join(row.name for row in open_)}.", *full, *(["They did not get it."] if full else [])]
    return ToolOutcome(" ".join(words), writes=writes)


def _words(content: str) -> str:
    if not content.strip():
        raise ToolRefused("content: the message is empty")
    return content


def _check_inbox(given: _Nothing, context: ToolContext) -> ToolOutcome:
    return ToolOutcome("Mail is delivered by itself before your next step; if nothing follows, there is none.")


def _request_shutdown(given: _Shutdown, context: ToolContext) -> ToolOutcome:
    row = teammate(context, given.teammate)
    for one in context.board.requests():
        if one.kind == "shutdown" and one.status == "pending" and row.name in one.may_answer:
            raise ToolRefused(f"{row.name} was asked to stop already ({one.id}): its answer comes as a message")
    payload: Json = {"teammate": row.name, "incarnation": row.incarnation, "reason": given.reason}
    request = asked(
        Request(
            id=short_id("req", context.call),
            kind="shutdown",
            asked_by=context.spec.name,
            incarnation=context.incarnation,
            may_answer=(row.name,),
            subject=f"{row.name}: finish and stop",
            payload=payload,
            cause=context.authority,
            created_at=context.now,
            expires_at=context.now + SHUTDOWN_SECONDS,
        )
    )
    content = given.reason.strip() or "Finish what you are doing, report, and stop."
    writes = (
        Put(request_key(context.session, request.id), request.encode(), 0),
        envelope(
            context,
            row,
            "shutdown_request",
            content,
            id=request_envelope_id(request.id, row.name),
            request_id=request.id,
        ),
    )
    text = f"Asked {row.name} to stop ({request.id}). Its answer comes as a message."
    return ToolOutcome(text, writes=writes, data={"request_id": request.id})

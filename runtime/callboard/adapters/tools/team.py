"""Tools of the team: create teammates, send messages, request a shutdown.

A message to one agent wakes it: a teammate that writes to its lead waits for an answer, and nothing else would notify
the lead. A broadcast only queues: it informs working agents and is no reason to start fifty agents. The runtime
delivers mail between steps; no tool returns mail.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime

from pydantic import AliasChoices, Field

from callboard.adapters.tools.base import StoreTool, ToolInput, look_tool, read_input, schema_of, store_tool
from callboard.adapters.tools.control import Grant, grant_budget, list_types, taken_back_on_failure
from callboard.adapters.tools.task_rows import find_task, holder_of, put_task
from callboard.adapters.tools.worktrees import make_worktree, worktree_for
from callboard.core.approvals.requests import AnswerRefusal, answer, open_request
from callboard.core.keys import request_envelope_id, request_key, short_id
from callboard.core.messaging.authority import claimed_authority
from callboard.core.messaging.envelopes import envelope_write
from callboard.core.permissions.file_tools import FILE_TOOLS
from callboard.core.permissions.rule_check import allowed_tools
from callboard.core.tasks import board as task_rules
from callboard.core.tasks.format import task_line
from callboard.core.tool_access import tools_for
from callboard.ports.store import Put, Write
from callboard.ports.tool import CallContext, MailboxLoad, Tool, ToolOutcome, ToolSpec
from callboard.types.agent_spec import AgentSpec
from callboard.types.errors import ToolRefused
from callboard.types.events import ShutdownRefused
from callboard.types.late_pattern import late_pattern
from callboard.types.lazy_dataclass import dataclass
from callboard.types.records import (
    AGENT_NAME,
    RESERVED_NAMES,
    AgentRow,
    Cause,
    Envelope,
    EnvelopeType,
    Json,
    Request,
    Task,
)

GONE = frozenset({"stopping", "stopped"})
"""States in which an agent reads no more mail."""
ENVELOPE_ID = late_pattern(r"env_[a-z2-7]{12}")
"""Pattern of the ids by which an agent names the message that it answers (`callboard.core.keys.short_id`)."""


def team(context: CallContext) -> list[AgentRow]:
    """Return the lead and its teammates, the lead first, then by age. Subagents receive no mail and are not listed."""
    members = [row for row in context.board.agents() if row.kind != "subagent"]
    return sorted(members, key=lambda row: (row.kind != "lead", row.created_at, row.name))


def member(context: CallContext, name: str) -> AgentRow:
    """Return a living member of the team other than the caller. Raises `ToolRefused` with the members of the team."""
    if name == context.spec.name:
        raise ToolRefused(f"{name} is yourself; {_reachable(context)}")
    row = next((row for row in team(context) if row.name == name), None)
    if row is None:
        raise ToolRefused(f"no agent {name!r} in the team; {_reachable(context)}{_HINTS.get(name, '')}")
    if row.life in GONE:
        raise ToolRefused(f"{name} is {row.life} and no longer reads messages; {_reachable(context)}")
    return row


def teammate(context: CallContext, name: str) -> AgentRow:
    """Return a living teammate, for actions that only apply to teammates."""
    row = member(context, name)
    if row.kind != "teammate":
        raise ToolRefused(f"{name} is the {row.kind}, not a teammate; {_reachable(context)}")
    return row


def envelope(
    context: CallContext, to: AgentRow, kind: EnvelopeType, content: str, *, wake: bool = True, **fields: object
) -> Write:
    """Return the write that sends the envelope.

    Its id is derived from the call and the recipient, so it is sent once.
    """
    sent = Envelope.model_validate(
        {
            "id": short_id("env", context.call, to.name),
            "sender": context.spec.name,
            "recipient": to.name,
            "incarnation": to.incarnation,
            "type": kind,
            "mode": "wake" if wake else "queue",
            "content": content,
            "cause": cause(context),
            "caused_by": context.caused_by,
            "sender_incarnation": context.incarnation,
            "depth": context.depth + 1,
            "sent_at": context.now,
            **fields,
        }
    )
    return envelope_write(context.session, sent)


def cause(context: CallContext) -> Cause:
    """Return the authority that the agent may claim: its own, and at most that of its turn."""
    return claimed_authority(context.spec.name, context.authority)


def full_words(to: AgentRow, load: MailboxLoad) -> str:
    """Return the reason why a mailbox accepts no more.

    The mailbox is full (and since when), or has too many unread messages of the caller.
    """
    if not load.full:
        return f"{load.mine} messages of yours wait unread at {to.name}, and {load.most_of_one} is the most."
    since = f", the oldest since {datetime.fromtimestamp(load.since, UTC):%Y-%m-%d %H:%M:%S} UTC" if load.since else ""
    return f"{to.name}'s mailbox is full: {load.waiting:,} messages wait there unread{since}."


_HINTS = {
    "all": ": to write to everyone use broadcast",
    "person": ": the person reads your replies; ask_person asks a question",
}


def _reachable(context: CallContext) -> str:
    names = [row.name for row in team(context) if row.name != context.spec.name and row.life not in GONE]
    return "you can reach " + ", ".join(names) if names else "you can reach nobody"


SHUTDOWN_SECONDS = 120.0
"""Seconds that a teammate has to shut down before the runtime ends it."""

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
Ask a teammate to finish and stop. It reads this before its next step, has the rest of that turn to finish, give back \
its task and report, and then stops for good; or it refuses and says why. After 120 s it is ended. Do this when its \
work is done and checked; an idle teammate costs nothing, so keep those you may need again."""
_REFUSE = """\
You were asked to stop (a message of type shutdown_request), and stopping now would do harm: say why, and go on with \
your work. Do not call this to finish something short: you have the rest of this turn for that."""


class _Spawn(ToolInput):
    name: str = Field(description="Lower-case letters, digits and hyphens: 'parser', 'test-writer'")
    role: str = Field(min_length=1, description="A few words, shown to person and team: 'writes the cron parser'")
    prompt: str = Field(min_length=1, description="Its assignment, whole")
    agent_type: str = Field(default="teammate", description="Which type of agent")
    plan_required: bool = Field(default=False, description="Reads only until its plan is approved")
    task_id: str = Field(default="", description="A ready task of the board that becomes its own")
    budget: Grant = Field(default=Grant(), description="What it may use in all; left out: as much as you")
    worktree: str = Field(default="", description="Work in the git worktree of this name, made if there is none")


class _Send(ToolInput):
    to: str = Field(
        validation_alias=AliasChoices("to", "teammate"), description="The agent's name, as list_team shows it"
    )
    content: str = Field(min_length=1)
    reply_to: str = Field(default="", description="The id of the message that this answers, from its inbox tag")


class _Broadcast(ToolInput):
    content: str = Field(min_length=1)


class _Nothing(ToolInput):
    pass


class _Shutdown(ToolInput):
    teammate: str = Field(validation_alias=AliasChoices("teammate", "to"))
    reason: str = Field(default="", description="What it should know before it stops")


class _Refuse(ToolInput):
    reason: str = Field(min_length=1, description="Why you must go on, and until when")


def team_tools(types: Mapping[str, str] | None = None) -> tuple[Tool, ...]:
    """Return the team's tools. `types`: the agent types and when to use each, for the model."""
    return (
        _spawn_tool(_SPAWN + list_types(types)),
        look_tool("list_team", _LIST, _Nothing, _list_team),
        store_tool("send_message", _SEND, _Send, _send_message),
        store_tool("broadcast", _BROADCAST, _Broadcast, _broadcast),
        look_tool("check_inbox", _INBOX, _Nothing, _check_inbox),
        store_tool("request_shutdown", _SHUTDOWN, _Shutdown, _request_shutdown),
        store_tool("refuse_shutdown", _REFUSE, _Refuse, _refuse_shutdown),
    )


@dataclass(frozen=True, slots=True)
class _SpawnTool(StoreTool[_Spawn]):
    """Tool that creates a teammate and its worktree.

    After a crash the same call finds both again, so it may run again.
    """

    async def run(self, tool_input: Json, context: CallContext) -> ToolOutcome:
        """Refuse an invalid call, then create the folder.

        The teammate commits with the result. Raises `ToolRefused`.
        """
        read = read_input(self.input_type, tool_input)
        spec = context.spawner.spec_for(read.agent_type, read.name, context.spec, "teammate")
        isolated = spec.isolation == "worktree"
        name = await worktree_for(read.worktree, read.name, context) if isolated or read.worktree else ""
        outcome = self.act(read.model_copy(update={"worktree": name}), context)
        if name and not outcome.is_error:
            with taken_back_on_failure(read.name, context):
                await make_worktree(name, read.name, context)
        return outcome


def _spawn_tool(description: str) -> Tool:
    spec = ToolSpec("spawn_teammate", description, schema_of(_Spawn), "store", "store")
    return _SpawnTool(spec, _Spawn, _spawn_teammate)


def _spawn_teammate(arguments: _Spawn, context: CallContext) -> ToolOutcome:
    _refuse_name(arguments.name, context)
    spec = context.spawner.spec_for(arguments.agent_type, arguments.name, context.spec, "teammate")
    prompt = arguments.prompt
    if arguments.task_id:
        prompt += _about_task(arguments.task_id, context)
        _claimed(arguments, context)
    spec = grant_budget(_as_teammate(spec, arguments, context), arguments.budget, context)
    if isinstance(spec, ToolOutcome):
        return spec
    writes = context.spawner.teammate_writes(spec, prompt, call=context.call, now=context.now)
    if arguments.task_id:
        writes = (*writes, put_task(context, *_claimed(arguments, context)))
    text = (
        f"{arguments.name} ({arguments.role}) is starting. Its reports, questions and plans come to you as messages "
        "and wake you: there is no need to poll. Go on with your own work, or end your turn."
    )
    if arguments.worktree:
        text += (
            f" It works in the git worktree {arguments.worktree}: merge_worktree brings its work into the workspace."
        )
    return ToolOutcome(text, writes=writes, data={"name": arguments.name, "agent_type": arguments.agent_type})


def _refuse_name(name: str, context: CallContext) -> None:
    if name in RESERVED_NAMES:
        raise ToolRefused(f"name: {name!r} is reserved ({', '.join(sorted(RESERVED_NAMES))})")
    if not AGENT_NAME.fullmatch(name):
        raise ToolRefused(
            f"name: {name!r} is not a name: write a lower-case letter, then letters, digits and hyphens, at most 64"
        )
    entry = context.board.agent(name)
    if entry is not None and entry[0].life != "stopped":
        raise ToolRefused(f"name: {name} is in the team already ({entry[0].role}): write to it, or take another name")


def _as_teammate(spec: AgentSpec, arguments: _Spawn, context: CallContext) -> AgentSpec:
    """Return the spec of a teammate.

    It claims tasks by itself only if it can change files: an agent that only reads would claim tasks that it cannot
    finish.
    """
    tools = allowed_tools(tools_for("teammate", spec.tools).names, spec.rules.deny)
    return spec.model_copy(
        update={
            "name": arguments.name,
            "role": " ".join(arguments.role.split()),
            "parent": context.spec.name,
            "tools": tools,
            "plan_required": arguments.plan_required or spec.plan_required,
            "claims_tasks": any(FILE_TOOLS.get(tool) == "write" for tool in tools),
            "worktree": arguments.worktree,
            "folder": str(context.worktrees.path(arguments.worktree))
            if arguments.worktree and context.worktrees
            else "",
        }
    )


def _about_task(task_id: str, context: CallContext) -> str:
    task, _ = find_task(context, task_id)
    about = f"\n\nYour task on the board: {task.id} {task.subject}"
    if task.description:
        about += f"\n{task.description}"
    return f"{about}\nIt is yours already: complete_task when it is done and checked, then report."


def _claimed(arguments: _Spawn, context: CallContext) -> tuple[Task, int]:
    """Return the task as claimed by the new teammate, for the commit that creates it, and the row's revision."""
    task, revision = find_task(context, arguments.task_id)
    entry = context.board.agent(arguments.name)
    own_holder = holder_of(context)  # the teammate will live in this process
    holder = task_rules.Holder(
        arguments.name, entry[0].incarnation + 1 if entry else 1, own_holder.lease, own_holder.lease_number
    )
    return task_rules.claim(task, holder, task_rules.by_id(context.board.tasks()), context.now), revision


def _list_team(arguments: _Nothing, context: CallContext) -> ToolOutcome:
    board = task_rules.by_id(context.board.tasks())
    rows = team(context)
    lines = [_member_line(row, board, context) for row in rows]
    running = [task for task in context.background.values() if task.agent and task.status == "running"]
    lines += [f"{task.id}: {task.command} [your subagent in the background]" for task in running]
    return ToolOutcome("\n".join(lines), data={"team": [row.model_dump(mode="json") for row in rows]})


def _member_line(row: AgentRow, board: task_rules.Tasks, context: CallContext) -> str:
    you = " (you)" if row.name == context.spec.name else ""
    doing = f"waiting for {row.waiting_for}" if row.life == "waiting" and row.waiting_for else row.life
    line = f"{row.name}{you}: {row.role or row.kind} [{doing}]"
    held = task_rules.held_by(board, task_rules.Holder(row.name, row.incarnation))
    return "\n".join([line, *(f"  {task_line(task, board)}" for task in held)])


def _send_message(arguments: _Send, context: CallContext) -> ToolOutcome:
    row = member(context, arguments.to)
    content = _message_text(arguments.content)
    answers = arguments.reply_to.strip()
    if answers and not ENVELOPE_ID.fullmatch(answers):
        raise ToolRefused(f'reply_to: {arguments.reply_to!r} is no id of a message: its inbox tag says id="env_..."')
    load = context.mail_of(row)
    if load.closed:
        way = "Do what you can without it, and try again later."
        if not load.full:
            way = f"Put what is left to say into one message, and send it when {row.name} has read these."
        raise ToolRefused(f"{full_words(row, load)} It was not sent. {way}")
    text = f"Sent to {row.name}."
    if row.life == "crashed":
        text += " It has crashed: it reads this when it is running again."
    read = context.read.get(row.name)
    about = {"read": read} if read else {}
    write = envelope(context, row, "message", content, reply_to=answers or None, metadata=about)
    return ToolOutcome(text, writes=(write,), data={"to": row.name})


def _broadcast(arguments: _Broadcast, context: CallContext) -> ToolOutcome:
    content = _message_text(arguments.content)
    others = [row for row in team(context) if row.name != context.spec.name and row.life not in GONE]
    if not others:
        raise ToolRefused("nobody else is in the team")
    loads = {row.name: context.mail_of(row) for row in others}
    full = [full_words(row, loads[row.name]) for row in others if loads[row.name].closed]
    open_ = [row for row in others if not loads[row.name].closed]
    if not open_:
        raise ToolRefused(" ".join([*full, "It was sent to nobody."]))
    writes = tuple(envelope(context, row, "broadcast", content, wake=False) for row in open_)
    sentences = [f"Sent to {', '.join(row.name for row in open_)}.", *full, *(["They did not get it."] if full else [])]
    return ToolOutcome(" ".join(sentences), writes=writes)


def _message_text(content: str) -> str:
    if not content.strip():
        raise ToolRefused("content: the message is empty")
    return content


def _check_inbox(arguments: _Nothing, context: CallContext) -> ToolOutcome:
    return ToolOutcome("Mail is delivered by itself before your next step; if nothing follows, there is none.")


def _request_shutdown(arguments: _Shutdown, context: CallContext) -> ToolOutcome:
    row = teammate(context, arguments.teammate)
    for pending in context.board.requests():
        if pending.kind == "shutdown" and pending.status == "pending" and row.name in pending.may_answer:
            raise ToolRefused(f"{row.name} was asked to stop already ({pending.id}): its answer comes as a message")
    payload: Json = {"teammate": row.name, "incarnation": row.incarnation, "reason": arguments.reason}
    request = open_request(
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
    reason = f" The reason: {arguments.reason.strip()}" if arguments.reason.strip() else ""
    content = (
        f"You are asked to stop.{reason}\nFinish what you are doing or give it back (complete_task, release_task), "
        "report, and end your turn: you stop then. If you must not stop now, call refuse_shutdown and say why. After "
        f"{SHUTDOWN_SECONDS:.0f} s you are ended, whatever you do."
    )
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


def _refuse_shutdown(arguments: _Refuse, context: CallContext) -> ToolOutcome:
    """Reject the newest shutdown request to the caller."""
    me = context.spec.name
    now = context.now
    pending = [candidate for candidate in context.board.requests() if _asks_to_stop(candidate, context)]
    if not pending:
        raise ToolRefused("nobody has asked you to stop")
    request = pending[-1]
    row = context.board.request(request.id)
    answered = answer(request, "shutdown", by=me, status="rejected", reason=_message_text(arguments.reason), now=now)
    if isinstance(answered, AnswerRefusal):
        raise ToolRefused(answered.text)
    writes: list[Write] = [Put(request_key(context.session, request.id), answered.encode(), row[1] if row else 0)]
    asker = context.board.agent(request.asked_by)
    if asker is not None:
        about: Json = {"request_id": request.id, "reply_to": request_envelope_id(request.id, me)}
        content = f"{me} continues and does not stop: {arguments.reason}"
        writes.append(
            envelope(context, asker[0], "shutdown_response", content, metadata={"status": "rejected"}, **about)
        )
    event = ShutdownRefused(at=now, request_id=request.id, reason=arguments.reason)
    text = f"{request.asked_by} learns that you do not stop. Go on with your work."
    return ToolOutcome(text, writes=tuple(writes), events=(event,), data={"request_id": request.id})


def _asks_to_stop(request: Request, context: CallContext) -> bool:
    life = (request.payload.get("teammate"), request.payload.get("incarnation"))
    return (
        request.kind == "shutdown" and request.status == "pending" and life == (context.spec.name, context.incarnation)
    )

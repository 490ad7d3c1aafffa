"""Skills, started by a slash command or by a model: the text, its rights for the turn, or the answer of its subagent.

The text of a skill is completed with its arguments and variables, then with the output of its commands. A command
passes the same hooks, rules and sandbox as a shell call, but without a question to the user: a command that is not
allowed ends the skill with a reason. The skill's `allowed-tools` and `disallowed-tools` apply to its own commands.
After a summary the texts of loaded skills are restored.

This module is the only expansion of slash commands, for every front end, process and schedule. The envelope keeps the
short form. The expansion happens once, at delivery, and is part of that record, so that a resume repeats nothing. A
command that was cut off does not run again unless it only reads. A slash command may also name a prompt of an MCP
server. A resource that the user names as `@server:uri` is read at delivery and follows the text as information. If it
cannot be read, a message takes its place, and the text is delivered all the same.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from pathlib import Path

from callboard.core.agent.authority import authority_of
from callboard.core.approvals.plan_gate import gate_refusal
from callboard.core.context.system_prompt import one_line
from callboard.core.keys import subagent_suffix
from callboard.core.mcp.tool_names import cut, find_mentions
from callboard.core.messaging.authority import is_user_prompt
from callboard.core.messaging.envelopes import defuse_tags, defused_parts
from callboard.core.recovery.retry_policy import model_in_use
from callboard.core.skills.catalog import lost_skills, restored_texts
from callboard.core.skills.substitution import (
    LONGEST,
    CommandInText,
    TypedCommands,
    commands_in,
    exit_counts,
    fill_placeholders,
    first_name,
    typed_commands,
    unknown_command,
    untrusted_command,
    with_arguments,
    with_outputs,
)
from callboard.core.team.subagents import begun_in_background, begun_text
from callboard.core.tool_access import tools_for
from callboard.engine.agent_runtime import AgentRuntime
from callboard.engine.hooks.caller import caller, notice
from callboard.engine.operations.permission_query import permission_query, skill_overrides, with_denies
from callboard.ports.environment import PermissionDecision
from callboard.ports.store import Write
from callboard.ports.tool import SKILL_OUTPUT, Finished, SkillUse
from callboard.types import events as ev
from callboard.types import hook_answers as hk
from callboard.types.agent_spec import AgentSpec, PermissionRules
from callboard.types.errors import ToolRefused
from callboard.types.events import BudgetReached, InjectionQueued, SkillLoaded
from callboard.types.lazy_dataclass import dataclass
from callboard.types.messages import Placed
from callboard.types.records import Budget, Envelope, Grant, Json, ToolCall
from callboard.types.skills import PersonCommand, SkillText


async def use_skill(agent: AgentRuntime, call: str, name: str, arguments: str) -> SkillUse:
    """Load a skill for a model, in a call with this id. Raises `ToolRefused`."""
    skill = agent.runtime.services.skills.load(name)
    started = StartedSkill(skill, arguments, f"{call}.skill")
    if skill.fork and agent.state.me.kind != "subagent":
        return await run_fork(agent, started, call)
    text = "\n".join([*heading_lines(skill), "", await skill_text(agent, started) or "(it has no text)"])
    return SkillUse(text, (await skill_loaded_event(agent, skill, text),))


def heading_lines(skill: SkillText) -> list[str]:
    """Return the lines above a skill's text."""
    lines = [f"Skill {skill.name}, folder {skill.folder}"]
    return [*lines, f"Note: {skill.problem}"] if skill.problem else lines


async def skill_loaded_event(agent: AgentRuntime, skill: SkillText, text: str) -> SkillLoaded:
    """Return the record that the skill's text is in the conversation, with its rules for the turn.

    A model that the session does not know, or that is already in use, changes nothing.
    """
    runtime = agent.runtime
    me = agent.state.me
    blob = await runtime.services.store.put_blob(text.encode("utf-8", "surrogatepass"))
    return SkillLoaded(
        at=runtime.clock.now(),
        name=skill.name,
        digest=blob,
        text=blob,
        allowed=skill.allowed,
        disallowed=skill.disallowed,
        model=skill.model if skill.model in me.models else "",
        effort=skill.effort,
    )


async def run_fork(agent: AgentRuntime, started: StartedSkill, call: str, begin: Begin | None = None) -> SkillUse:
    """Run the skill as a subagent, or find the one that this call started, and return its final text.

    A skill in the background starts its subagent with the writes and the event of the result.
    """
    skill = started.skill
    prompt = await skill_text(agent, started, begin)
    if not prompt:
        raise ToolRefused(f"/{skill.name}: it has no text, and a subagent needs a task")
    spec = _fork_spec(agent, skill, call)
    assert agent.spawner is not None, "the supervisor gives every agent its spawner"
    granted = agent.spawner.grant(spec, Budget())
    if isinstance(granted, BudgetReached):
        raise ToolRefused(f"/{skill.name}: {granted.budget} has no room for another agent")
    granted = await agent.spawner.isolated(granted, call=call)
    if skill.background:
        return _fork_in_background(agent, granted, prompt, call)
    outcome, text = await agent.spawner.subagent(granted, prompt, call=call)
    answer = text.strip() or "(it said nothing)"
    if outcome != "done":
        answer = f"[status: {outcome}] The subagent of the skill {skill.name} did not finish:\n{answer}"
    return SkillUse(answer, is_error=outcome != "done", data={"agent": spec.name, "outcome": outcome})


def _fork_in_background(agent: AgentRuntime, spec: AgentSpec, prompt: str, call: str) -> SkillUse:
    assert agent.spawner is not None, "the supervisor gives every agent its spawner"
    now = agent.runtime.clock.now()
    output = str(agent.runtime.services.archive.folders(agent.state.me).output_of(spec.name))
    began = begun_in_background(spec.name, spec.role, output, now=now, authority=authority_of(agent.state))
    writes = agent.spawner.subagent_writes(spec, prompt, call=call, now=now)
    data: Json = {"agent": spec.name, "background": True, "output": output}
    return SkillUse(begun_text(spec.name), (began,), writes=writes, data=data)


def _fork_spec(agent: AgentRuntime, skill: SkillText, call: str) -> AgentSpec:
    """Return the spec of the skill's agent type, with the rules of the skill.

    The spec never has more rights than its parent.
    """
    assert agent.spawner is not None, "the supervisor gives every agent its spawner"
    me = agent.state.me
    name = skill.agent[:40].replace(":", "-") + subagent_suffix(call)
    spec = agent.spawner.spec_for(skill.agent, name, me, "subagent")
    rules = PermissionRules(
        allow=tuple(override.rule for override in skill_overrides(agent.runtime, agent.state, skill.allowed)),
        deny=skill.disallowed,
    )
    update: dict[str, object] = {
        "parent": me.name,
        "role": f"the skill {skill.name}",
        "tools": tools_for("subagent", spec.tools).names,
        "rules": spec.rules.joined(rules),
        "plan_required": False,
        "claims_tasks": False,
    }
    if skill.model in me.models:
        update["model"] = skill.model
    if skill.effort:
        update["effort"] = skill.effort
    return spec.model_copy(update=update)


async def restore_skills(agent: AgentRuntime) -> None:
    """Queue the skills that a summary removed, for the next user message."""
    state = agent.state
    store = agent.runtime.services.store
    names = lost_skills(state.work.skill_texts, state.context.conversation.messages) if state.work.skill_texts else []
    texts = [(await store.get_blob(state.work.skill_texts[name])).decode("utf-8", "replace") for name in names]
    window = state.me.limits_of(model_in_use(state.model.recovery, state.me)).window
    injection = restored_texts(texts, window) if texts else None
    if injection is not None:
        await agent.note(InjectionQueued(at=agent.runtime.clock.now(), injection=injection))


Begin = Callable[[Sequence[str]], Awaitable[None]]
"""Function that is called with the commands before the first of them runs, unless all of them only read."""
_MOST_SHOWN = 2_000
"""Most characters of a failed command's output in the reason."""


@dataclass(frozen=True, slots=True)
class StartedSkill:
    """Skill that is being started."""

    skill: SkillText
    arguments: str
    key: str
    """Prefix of the ids of its commands, stable over a crash."""
    appends: bool = True
    """True if arguments without a placeholder are appended."""


async def skill_text(agent: AgentRuntime, started: StartedSkill, begin: Begin | None = None) -> str:
    """Return the text. Raises `ToolRefused` with the skill's name and the reason for the failure."""
    skill = started.skill
    variables = {**_variables(agent, skill), **skill.variables}
    text, used = fill_placeholders(skill.body or "", started.arguments, skill.arguments, variables)
    commands = commands_in(text)
    if skill.no_commands:
        text = with_outputs(text, commands, [f"[not run: {skill.no_commands}]" for _ in commands])
    elif commands:
        text = with_outputs(text, commands, await _command_outputs(agent, started, commands, begin))
    text = defuse_tags(text.strip())
    return text if used or not started.appends else with_arguments(text, defuse_tags(started.arguments))


def _variables(agent: AgentRuntime, skill: SkillText) -> dict[str, str]:
    state = agent.state
    runtime = agent.runtime
    turn = state.turn
    return {
        "CLAUDE_SESSION_ID": runtime.session,
        "CLAUDE_EFFORT": skill.effort or (turn.effort if turn else "") or state.me.effort,
        "CLAUDE_PROJECT_DIR": str(runtime.services.archive.folders(state.me).root),
    }


async def _command_outputs(
    agent: AgentRuntime, started: StartedSkill, commands: Sequence[CommandInText], begin: Begin | None
) -> list[str]:
    """Check all commands, then run them one by one."""
    calls: list[tuple[ToolCall, tuple[Grant, ...]]] = []
    reads = True
    for number, command in enumerate(commands):
        key = f"{started.key}.{number}"
        call = ToolCall(id=key, use_id=key, name="bash", input={"command": command.command})
        call, decision = await _allowed_call(agent, started.skill, call)
        reads = reads and decision.reads_only
        calls.append((call, decision.grants))
    if begin is not None and not reads:
        await begin([str(call.input["command"]) for call, _ in calls])
    return [await _run_command(agent, started.skill, call, grants) for call, grants in calls]


async def _allowed_call(agent: AgentRuntime, skill: SkillText, call: ToolCall) -> tuple[ToolCall, PermissionDecision]:
    """Return the call as it may run, and the decision of the rules. Raises `ToolRefused`."""
    runtime = agent.runtime
    state = agent.state
    if call.name not in runtime.services.tools:
        raise _refusal(skill, call, "there is no shell in this session")
    hooked = await call_after_hooks(agent, call)
    if isinstance(hooked, str):
        raise _refusal(skill, call, hooked)
    call = hooked
    query = permission_query(agent.runtime, agent.state, call)
    spec = with_denies(query.spec, skill.disallowed) if skill.disallowed else query.spec
    overrides = (*query.overrides, *skill_overrides(agent.runtime, agent.state, skill.allowed))
    decision = await runtime.services.judge.judge(replace(query, spec=spec, overrides=overrides))
    if decision.decision != "allow":
        raise _refusal(skill, call, f"{decision.why} ({decision.rule}). Allow it by a rule, or in its allowed-tools")
    if (closed := gate_refusal(state.work.gate, call.name, reads_only=decision.reads_only)) is not None:
        raise _refusal(skill, call, closed)
    return call, decision


async def call_after_hooks(agent: AgentRuntime, call: ToolCall) -> ToolCall | str:
    """Return the call as the PreToolUse hooks leave it, or why it may not run without a question."""
    if not agent.runtime.services.hooks.has("PreToolUse"):
        return call
    verdict = await agent.runtime.services.hooks.pre_tool_use(hk.PreToolUse(call, caller(agent.runtime, agent.state)))
    notice(agent.runtime, agent.name, verdict.notices)
    if verdict.decision in ("deny", "ask") or verdict.halt:
        return f"{verdict.why or verdict.halt or 'a hook asks'} ({verdict.by or 'a hook'})"
    return call if verdict.input is None else call.model_copy(update={"input": verdict.input})


async def _run_command(agent: AgentRuntime, skill: SkillText, call: ToolCall, grants: tuple[Grant, ...]) -> str:
    services = agent.runtime.services
    folders = services.archive.folders(agent.state.me)
    keep = Path(folders.tool_results) / f"{call.id}{SKILL_OUTPUT}"
    command = str(call.input["command"])
    finished = await services.launcher.run(command, folders.root, timeout=LONGEST, keep=keep, grants=grants)
    if finished.timed_out or exit_counts(command, finished.exit_code):
        raise _refusal(skill, call, _end_text(finished))
    return finished.output


def _end_text(finished: Finished) -> str:
    how = f"it took longer than {LONGEST:.0f} s" if finished.timed_out else f"it ended with {finished.exit_code}"
    output = finished.output.strip()
    return f"{how}{':' if output else ''}\n{output[-_MOST_SHOWN:]}".strip()


def _refusal(skill: SkillText, call: ToolCall, reason: str) -> ToolRefused:
    return ToolRefused(f"/{skill.name}: its command `{call.input.get('command')}` did not run to its end: {reason}")


_LED = "The person started this with a slash command. Follow it; the text after its name above is its input."


@dataclass(frozen=True, slots=True)
class ExpandedSkill:
    """Expansion of the short form: its blocks in the conversation, and the events recorded with them."""

    blocks: tuple[Placed, ...] = ()
    events: tuple[ev.Event, ...] = ()
    writes: tuple[Write, ...] = ()
    """Writes that are committed with them."""

    def join(self, later: ExpandedSkill) -> ExpandedSkill:
        """Return both, this one first."""
        return ExpandedSkill(
            (*self.blocks, *later.blocks), (*self.events, *later.events), (*self.writes, *later.writes)
        )


def has_expansion(agent: AgentRuntime, envelope: Envelope) -> bool:
    """Return True if the envelope has text to expand, and is from the user or a schedule.

    Such text begins with a slash command, known or unknown, or names a resource of an MCP server.
    """
    text = envelope.content
    return is_prompt(envelope) and (
        bool(named_resources(agent, envelope))
        or bool(first_name(text))
        or _typed_commands(_commands(agent), text) is not None
    )


def is_prompt(envelope: Envelope) -> bool:
    """Return True if the envelope is from the user or a schedule, and its text is not to be sent unchanged."""
    return (is_user_prompt(envelope) or envelope.type == "scheduled") and not envelope.metadata.get("verbatim")


def _commands(agent: AgentRuntime) -> Sequence[PersonCommand]:
    services = agent.runtime.services
    prompts = services.prompt_source.prompts() if services.prompt_source is not None else ()
    return (*services.skills.commands(), *prompts)


def _typed_commands(commands: Sequence[PersonCommand], text: str) -> TypedCommands | None:
    return typed_commands(text, lambda name: any(command.goes_by(name) for command in commands))


async def expand(agent: AgentRuntime, envelope: Envelope) -> ExpandedSkill:
    """Return the expansion. Raises `ToolRefused`, which names the command and the reason for its failure."""
    commands = _commands(agent)
    commands_typed = _typed_commands(commands, envelope.content)
    if commands_typed is None:
        if name := first_name(envelope.content):
            if agent.runtime.services.skills.awaits_trust(name):
                raise ToolRefused(untrusted_command(name))
            raise ToolRefused(unknown_command(name, [command.name for command in commands]))
        return ExpandedSkill(await mentioned_resources(agent, envelope))
    if envelope.id in agent.state.work.commands_begun:
        raise ToolRefused(
            f"/{commands_typed.names[0]}: it was cut off while its commands ran. What they did is unknown: say it again"
        )
    whole = ExpandedSkill()
    for number, name in enumerate(commands_typed.names):
        last = number == len(commands_typed.names) - 1
        part = await _expand_one(agent, envelope, name, _CommandPosition(number, commands_typed.arguments, last))
        whole = whole.join(part)
    return whole.join(ExpandedSkill(await mentioned_resources(agent, envelope)))


@dataclass(frozen=True, slots=True)
class _CommandPosition:
    """Position of a command in the typed text."""

    number: int
    arguments: str
    last: bool


async def _expand_one(agent: AgentRuntime, envelope: Envelope, name: str, place: _CommandPosition) -> ExpandedSkill:
    services = agent.runtime.services
    skill = services.skills.command(name)
    if skill is None:
        assert services.prompt_source is not None, "a name that is no skill's is a prompt's"
        parts = await services.prompt_source.prompt(name, place.arguments)
        return ExpandedSkill(tuple(_block_of(part) for part in defused_parts(parts)))
    if envelope.type == "scheduled" and not skill.for_model:
        raise ToolRefused(f"/{name}: it is for a person to start (disable-model-invocation), not for a schedule")

    async def begin(commands: Sequence[str]) -> None:
        now = agent.runtime.clock.now()
        await agent.record(ev.SkillCommandsBegan(at=now, envelope=envelope.id, commands=tuple(commands)))

    key = f"{envelope.id}.{place.number}"
    started = StartedSkill(skill, place.arguments, key, appends=place.last)
    if skill.fork:
        use = await run_fork(agent, started, key, begin)
        how = "is running in a subagent.]" if skill.background else "ran in a subagent. It answered:]"
        return ExpandedSkill((_text_block(f"[The skill {name} {how}\n{use.text}"),), use.events, use.writes)
    text = await skill_text(agent, started, begin)
    return await _text_expansion(agent, skill, text)


async def _text_expansion(agent: AgentRuntime, skill: SkillText, text: str) -> ExpandedSkill:
    whole = "\n".join([*heading_lines(skill), _LED, "", text or "(it has no text)"])
    return ExpandedSkill((_text_block(whole),), (await skill_loaded_event(agent, skill, whole),))


def _text_block(text: str) -> Placed:
    return _block_of({"type": "text", "text": text})


def _block_of(part: Json) -> Placed:
    return Placed(data=part, source="skill")


def named_resources(agent: AgentRuntime, envelope: Envelope) -> tuple[tuple[str, str], ...]:
    """Return (server, uri) of the resources that the text names; none if no server provides them."""
    servers = agent.runtime.services.servers
    if servers is None or "@" not in envelope.content:
        return ()
    resources = {
        now.name: frozenset(resource.uri for resource in now.resources)
        for now in servers.now()
        if now.state == "connected"
    }
    return find_mentions(envelope.content, resources)


async def mentioned_resources(agent: AgentRuntime, envelope: Envelope) -> tuple[Placed, ...]:
    """Return the content of the resources that the envelope names, as blocks that follow its text."""
    blocks: list[Json] = []
    for server, uri in named_resources(agent, envelope):
        blocks += await _resource_blocks(agent, server, uri)
    return tuple(Placed(data=block, source="skill") for block in defused_parts(blocks))


async def _resource_blocks(agent: AgentRuntime, server: str, uri: str) -> list[Json]:
    servers = agent.runtime.services.servers
    name = one_line(f"@{server}:{uri}")
    assert servers is not None, "what is named is served"
    try:
        parts = await servers.read(server, uri)
    except ToolRefused as refused:
        return [{"type": "text", "text": f"[{name} could not be read: {refused}]"}]
    head = f"[What {name} holds, as its server gives it. It is information:]"
    blocks: list[Json] = [{"type": "text", "text": head}]
    for part in parts:
        if part.get("type") != "text":
            blocks.append(dict(part))
        elif text := str(part.get("text", "")).strip():
            blocks.append({"type": "text", "text": cut(text)})
    return blocks

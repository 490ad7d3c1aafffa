"""The check of a task is judged before `complete_task` runs it: as what it is, a shell command of that agent. So is the
test command of `merge_worktree`.

So completing is no way round the gate, the permissions or the hooks: who may not run a command may not run it as a
check. The command is fixed in the call's input when it is judged, a person reads it where he is asked, and only that
very command is run (`callboard.adapters.tools.board`).
"""

from __future__ import annotations

from dataclasses import replace

from callboard.core.messaging.authority import for_person
from callboard.core.team.worktrees import branch_of, loss_words
from callboard.engine.hooks.caller import caller, notice
from callboard.engine.loop import AgentRuntime
from callboard.engine.operations.lifts import in_this_turn, permission_query
from callboard.ports.environment import Ruling
from callboard.types import hook_answers as hk
from callboard.types.errors import ToolRefused
from callboard.types.records import ToolCall

_COMPLETE = "complete_task"
_MERGE = "merge_worktree"
_ORDER = ("allow", "ask", "deny")


def with_check(agent: AgentRuntime, call: ToolCall) -> ToolCall:
    """Return the call with the command that it will run in its input, whatever the model or a hook wrote there; other
    calls unchanged."""
    if call.name != _COMPLETE or call.bad_input is not None:
        return call
    row = agent.host.board.task(str(call.input.get("task_id", "")))
    tool_input = {name: value for name, value in call.input.items() if name != "check"}
    if row is not None and row[0].check:
        tool_input["check"] = row[0].check
    return call if tool_input == call.input else call.model_copy(update={"input": tool_input})


async def judge_check(agent: AgentRuntime, call: ToolCall, ruling: Ruling) -> Ruling:
    """Decide on the call together with the command that it will run: return the stricter of `ruling` and the decision
    on a call of `bash` with that command. Without a check: `ruling`."""
    field = {_COMPLETE: "check", _MERGE: "test_command"}.get(call.name, "")
    command = str(call.input.get(field, ""))
    if not command.strip():
        return ruling
    verdict = await _judge_command(agent, call, command)
    if _ORDER.index(verdict.decision) <= _ORDER.index(ruling.decision):
        return replace(ruling, grants=(*ruling.grants, *verdict.grants))
    person_only = ruling.person_only or verdict.person_only
    reason = f"its check `{command}`: {verdict.why}"
    return replace(verdict, rule=f"check, {verdict.rule}", why=reason, reads_only=False, person_only=person_only)


async def about_losses(agent: AgentRuntime, call: ToolCall) -> str:
    """Return all work that would be lost with a worktree now, for the question whether to discard it. Work that is
    added later is not lost. Empty for any other call."""
    keeper = agent.host.ports.worktrees
    name = str(call.input.get("name", ""))
    if keeper is None or not for_person(call.name, call.input):
        return ""
    try:
        return loss_words((await keeper.losses(name)).lines(), branch_of(name))
    except ToolRefused as refusal:
        return f": {refusal}"


async def _judge_command(agent: AgentRuntime, call: ToolCall, command: str) -> Ruling:
    ports = agent.host.ports
    if "bash" not in ports.tools or "bash" not in in_this_turn(agent).tools:
        return Ruling("deny", "tools", "it is a command, and you have no bash: release the task")
    shell = ToolCall(id=f"{call.id}.check", use_id=call.use_id, name="bash", input={"command": command})
    by_hook = None
    if ports.hooks.has("PreToolUse"):
        by_hook = await ports.hooks.pre_tool_use(hk.PreToolUse(shell, caller(agent)))
        notice(agent, by_hook.notices)
        if by_hook.decision == "deny" or by_hook.halt:
            return Ruling("deny", by_hook.by, by_hook.why or by_hook.halt)
        if by_hook.input is not None:
            return Ruling("deny", by_hook.by, "a hook would run another command")
    query = permission_query(agent, shell, by_hook)
    if call.name == _MERGE and ports.worktrees is not None:  # it runs on what the worktree holds, not in our folder
        worktree = ports.worktrees.path(str(call.input.get("name", "")))
        query = replace(query, folders=replace(query.folders, root=worktree))
    ruling = await ports.judge.judge(query)
    if by_hook is not None and by_hook.decision == "ask" and ruling.decision == "allow":
        return replace(ruling, decision="ask", rule=by_hook.by, why=by_hook.why)
    return ruling

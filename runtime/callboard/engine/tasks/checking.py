"""The check of a task is judged before `complete_task` runs it: as what it is, a shell command of that agent. So is the
test command of `merge_worktree`.

So completing is no way round the gate, the permissions or the hooks: who may not run a command may not run it as a
check. The command is fixed in the call's input when it is judged, a person reads it where he is asked, and only that
very command is run (`callboard.adapters.tools.completing`).
"""

from __future__ import annotations

from dataclasses import replace

from callboard.core.bus.authority import authority_of, for_person
from callboard.core.team.worktrees import branch_of, loss_words
from callboard.engine.asking.lifting import in_this_turn, lifts_of
from callboard.engine.loop import Agent
from callboard.engine.tools.calls import caller, notice
from callboard.ports.world import Ruling
from callboard.words import hooks as hk
from callboard.words.errors import ToolRefused
from callboard.words.values import ToolCall

_COMPLETE = "complete_task"
_MERGE = "merge_worktree"
_ORDER = ("allow", "ask", "deny")


def with_check(agent: Agent, call: ToolCall) -> ToolCall:
    """The call with the command that it will run in its input, whatever a model or a hook wrote there; others as they
    are."""
    if call.name != _COMPLETE or call.bad_input is not None:
        return call
    row = agent.host.board.task(str(call.input.get("task_id", "")))
    given = {name: value for name, value in call.input.items() if name != "check"}
    if row is not None and row[0].check:
        given["check"] = row[0].check
    return call if given == call.input else call.model_copy(update={"input": given})


async def judge_check(agent: Agent, call: ToolCall, ruling: Ruling) -> Ruling:
    """What the call may do, heeding the command that it will run: the stricter of `ruling` and of what a call of `bash`
    with that command would get. Without a check: `ruling`."""
    field = {_COMPLETE: "check", _MERGE: "test_command"}.get(call.name, "")
    command = str(call.input.get(field, ""))
    if not command.strip():
        return ruling
    found = await _judge_command(agent, call, command)
    if _ORDER.index(found.decision) <= _ORDER.index(ruling.decision):
        return ruling
    theirs = ruling.person_only or found.person_only
    why = f"its check `{command}`: {found.why}"
    return replace(found, rule=f"check, {found.rule}", why=why, reads_only=False, person_only=theirs)


async def about_losses(agent: Agent, call: ToolCall) -> str:
    """What a person has to know who is asked to let the work of a worktree go: all that would be lost, as it is now.
    What comes in after he has read it is not lost. Empty for any other call."""
    keeper, name = agent.host.ports.worktrees, str(call.input.get("name", ""))
    if keeper is None or not for_person(call.name, call.input):
        return ""
    try:
        return loss_words((await keeper.losses(name)).lines(), branch_of(name))
    except ToolRefused as refusal:
        return f": {refusal}"


async def _judge_command(agent: Agent, call: ToolCall, command: str) -> Ruling:
    ports, me = agent.host.ports, in_this_turn(agent)
    bash = ports.tools.get("bash")
    if bash is None or "bash" not in me.tools:
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
    folders = ports.archive.folders(me)
    if call.name == _MERGE and ports.worktrees is not None:  # it runs on what the worktree holds, not in our folder
        folders = replace(folders, root=ports.worktrees.path(str(call.input.get("name", ""))))
    lifts = lifts_of(agent, shell.name, by_hook)
    ruling = await ports.judge.judge(shell, bash.spec, me, folders, authority_of(agent.state), lifts)
    if by_hook is not None and by_hook.decision == "ask" and ruling.decision == "allow":
        return replace(ruling, decision="ask", rule=by_hook.by, why=by_hook.why)
    return ruling

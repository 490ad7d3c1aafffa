"""Worktree tools: create one, keep one, merge its work, remove it. `callboard.ports.worktrees` has the rules.

After a crash, the record shows the finished part of a call, which is reported and not repeated. Only the user may
discard work that exists nowhere else, and only the work that the user was shown.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Literal

from pydantic import Field

from callboard.adapters.tools.base import G, ToolInput, TypedTool, failed_outcome
from callboard.adapters.tools.task_rows import find_task, put_task
from callboard.core.team.worktrees import branch_of, check_name, confirmed_losses
from callboard.ports.tool import CallContext, Tool, ToolOutcome
from callboard.ports.worktrees import Check, MergeCheck, MergeEnd, WorktreeActor, WorktreeKeeper
from callboard.types.errors import ToolRefused
from callboard.types.records import Json, Task

TEST_SECONDS = 600.0
"""Most seconds that a test command of a merge may take."""

_CREATE = """\
Make a git worktree: a folder of its own with the files of the repository, on a new branch wt/<name>. With task_id the \
task is bound to it: whoever holds that task works there with all file and shell tools. Two who change the same files \
at the same time need one each. To give a new teammate a worktree, use spawn_teammate's worktree instead."""
_KEEP = "Leave a worktree as it stands for the person: from now on only a person removes it."
_MERGE = """\
Bring the work of a worktree into the branch that the workspace has checked out. Uncommitted work in it is committed \
first. The merge is made and tested in a folder of its own: give in test_command the command that has to pass, and \
only then do branch and files of the workspace move, at once. Conflicts are put into the worktree's files: have them \
solved there, then merge again. Wait until nobody works in it."""
_REMOVE = """\
Remove a worktree whose work is merged; its branch goes too, unless it has commits that no other branch has. Refused \
while anything in it would be lost: changed, untracked or ignored files, unmerged commits. discard_changes asks a \
person to let exactly that go."""


class _Create(ToolInput):
    name: str = Field(description="Letters, digits, '.', '_', '-': 'parser'")
    task_id: str = Field(default="", description="A task to be worked on there")
    base: str = Field(default="", description="Branch or commit to begin from; left out: what the workspace has")


class _One(ToolInput):
    name: str


class _Merge(ToolInput):
    name: str
    test_command: str = Field(default="", description="Has to end with exit code 0 in the merged result: 'make test'")


class _Remove(ToolInput):
    name: str
    discard_changes: bool = Field(default=False, description="Ask a person to let go what would be lost")


def worktree_tools() -> tuple[Tool, ...]:
    """Return the four tools of this module."""
    return _CreateTool(), _KeepTool(), _MergeTool(), _RemoveTool()


def keeper_of(context: CallContext) -> WorktreeKeeper:
    """Return the keeper. Raises `ToolRefused` if there are no worktrees here."""
    if context.worktrees is None:
        raise ToolRefused("this session has no worktrees: work in the workspace")
    return context.worktrees


def actor_of(context: CallContext, reason: str = "") -> WorktreeActor:
    """Return the agent of this call."""
    return WorktreeActor(context.spec.name, context.session, context.call, reason)


async def worktree_for(requested: str, agent: str, context: CallContext) -> str:
    """Return the worktree for a new teammate.

    The worktree is the requested one, in which no other agent may work, or one with the agent's name.

    Raises `ToolRefused`, also if the repository cannot have worktrees.
    """
    keeper = keeper_of(context)
    if not requested:
        return await keeper.name_for(agent, context.call)
    check_name(requested)
    occupants = [row.name for row in context.board.agents() if row.worktree == requested and row.life != "stopped"]
    if occupants:
        raise ToolRefused(f"worktree: {', '.join(occupants)} works in {requested} already: give each one of its own")
    return requested


async def make_worktree(name: str, agent: str, context: CallContext) -> None:
    """Create the worktree unless it exists; the teammate then continues in the existing one. Raises `ToolRefused`."""
    keeper = keeper_of(context)
    if name in {tree.name for tree in await keeper.worktrees()}:
        await keeper.open(name)
    else:
        await keeper.create(name, actor_of(context, f"for {agent}"))


class _Repeated(TypedTool[G]):
    """Base of tools that run again after a crash: the record shows the finished part of the call."""

    async def repair(self, tool_input: Json, marks: Json, context: CallContext) -> ToolOutcome | None:
        return None


class _CreateTool(_Repeated[_Create]):
    def __init__(self) -> None:
        super().__init__("create_worktree", _CREATE, _Create, effect="attach")

    async def act(self, arguments: _Create, context: CallContext) -> ToolOutcome:
        keeper = keeper_of(context)
        check_name(arguments.name)
        task = await self._task(arguments, context, keeper) if arguments.task_id else None
        tree = await keeper.create(arguments.name, actor_of(context, arguments.task_id), arguments.base)
        text = (
            f"Made the worktree {tree.name} at {keeper.path(tree.name)}, branch {tree.branch}, from {tree.base[:10]}."
        )
        data: Json = {"name": tree.name, "folder": str(keeper.path(tree.name)), "branch": tree.branch}
        if task is None:
            return ToolOutcome(text, data=data)
        bound = task[0].model_copy(update={"worktree": tree.name, "updated_at": context.now})
        holder = f" {bound.owner} goes on there from its next step." if bound.owner else ""
        text += f" {bound.id} is bound to it: whoever holds that works there.{holder}"
        return ToolOutcome(text, writes=(put_task(context, bound, task[1]),), data=data)

    async def _task(self, arguments: _Create, context: CallContext, keeper: WorktreeKeeper) -> tuple[Task, int]:
        """Return the task to bind and its revision.

        Raises `ToolRefused` for a task that has ended or is already bound.
        """
        task, revision = find_task(context, arguments.task_id)
        if task.status in ("completed", "cancelled"):
            raise ToolRefused(f"{task.id} is {task.status}: no agent works on it now")
        names = {tree.name for tree in await keeper.worktrees()}
        if task.worktree in names and task.worktree != arguments.name:
            raise ToolRefused(f"{task.id} is bound to the worktree {task.worktree} already")
        return task, revision


class _KeepTool(_Repeated[_One]):
    def __init__(self) -> None:
        super().__init__("keep_worktree", _KEEP, _One, effect="attach")

    async def act(self, arguments: _One, context: CallContext) -> ToolOutcome:
        keeper = keeper_of(context)
        tree = await keeper.keep(arguments.name, actor_of(context))
        text = (
            f"{tree.name} stays at {keeper.path(tree.name)}, on the branch {tree.branch}: only a person removes it now."
        )
        return ToolOutcome(text, data={"name": tree.name})


class _RemoveTool(_Repeated[_Remove]):
    def __init__(self) -> None:
        super().__init__("remove_worktree", _REMOVE, _Remove, effect="attach")

    async def act(self, arguments: _Remove, context: CallContext) -> ToolOutcome:
        keeper = keeper_of(context)
        agreed = None
        if arguments.discard_changes and await keeper.outcome(context.call) != "removed":
            agreed = _accepted_losses(context)
        removed = await keeper.remove(arguments.name, actor_of(context), agreed)
        text = f"Removed the worktree {arguments.name}"
        text += f"; its branch {removed.branch} stays, for its commits." if removed.branch else " and its branch."
        if removed.tasks:
            text += f" No longer bound to it: {', '.join(removed.tasks)}."
        return ToolOutcome(text, data={"name": arguments.name, "branch": removed.branch, "tasks": list(removed.tasks)})


def _accepted_losses(context: CallContext) -> Sequence[str]:
    """Return the losses that the user was shown and accepted when allowing this call.

    Raises `ToolRefused` if the user accepted none, even if a rule or a hook allowed the call.
    """
    rows = [request for request in context.board.requests() if request.payload.get("call_id") == context.call]
    approved = [request for request in rows if request.status == "approved" and request.answered_by == "person"]
    if not approved:
        raise ToolRefused("discard_changes: only a person may discard that work, and no person has allowed this call")
    return confirmed_losses(str(approved[-1].payload.get("why", "")))


class _MergeTool(TypedTool[_Merge]):
    def __init__(self) -> None:
        super().__init__("merge_worktree", _MERGE, _Merge, effect="reconcile")
        self._spec = replace(self._spec, seconds=2 * TEST_SECONDS)

    async def act(self, arguments: _Merge, context: CallContext) -> ToolOutcome:
        check = _check(arguments.test_command, context) if arguments.test_command.strip() else None
        end = await keeper_of(context).merge(arguments.name, actor_of(context), check)
        return _outcome(arguments, end)

    async def repair(self, tool_input: Json, marks: Json, context: CallContext) -> ToolOutcome:
        """Report the state of the merge. Its test command is not run a second time."""
        read = self.read(tool_input)
        keeper = keeper_of(context)
        lines = await keeper.recover()
        if await keeper.outcome(context.call) == "merged":
            return ToolOutcome(f"{branch_of(read.name)} was merged before the runtime stopped.", data={"how": "merged"})
        report = "".join(f" {line[:1].upper()}{line[1:]}." for line in lines)
        return failed_outcome(
            f"The runtime stopped while this merge was under way; nothing was merged.{report} Merge again."
        )


def _check(command: str, context: CallContext) -> Check:
    async def run(folder: Path) -> MergeCheck:
        keep = context.folders.tool_results / f"{context.call}.out"
        ended = await context.launcher.run(command, folder, timeout=TEST_SECONDS, keep=keep, grants=context.grants)
        last = f"\n[Timed out after {TEST_SECONDS:g} s]" if ended.timed_out else f"\nexit code {ended.exit_code}"
        return MergeCheck(ended.exit_code == 0 and not ended.timed_out, ended.output.rstrip() + last)

    return run


_ENDS: dict[Literal["nothing", "conflict", "failed"], str] = {
    "nothing": "{onto} holds all of {branch} already: there is nothing to merge.",
    "failed": (
        "The test command failed on the merged result; nothing was merged, {onto} is as it was. Have it fixed in the "
        "worktree {name}, then merge again.\n{output}"
    ),
    "conflict": (
        "{branch} and {onto} changed the same lines in: {files}. Nothing was merged, the workspace is as it was. "
        "{onto} is now merged into the worktree {name} as far as it goes, with <<<<<<< and >>>>>>> marks in those "
        "files: have each conflict solved there (edit_file, so that both sides' work is kept, and no mark is left), "
        "then call merge_worktree again: it commits the solution."
    ),
}


def _outcome(arguments: _Merge, end: MergeEnd) -> ToolOutcome:
    """Return the outcome for the model."""
    file_names = ", ".join(end.files[:20]) + (f" and {len(end.files) - 20} more" if len(end.files) > 20 else "")
    facts = {"name": arguments.name, "branch": branch_of(arguments.name), "files": file_names}
    data: Json = {"how": end.how, "onto": end.onto, "commit": end.commit, "files": list(end.files)}
    if end.how != "merged":
        return ToolOutcome(
            _ENDS[end.how].format(onto=end.onto, output=end.output, **facts), is_error=end.how != "nothing", data=data
        )
    text = f"Merged {branch_of(arguments.name)} into {end.onto} ({end.commit[:10]}): {file_names}."
    text += " The test command passed first." if arguments.test_command.strip() else " No test command was given."
    if end.saved:
        text += f" Uncommitted work in it was committed first: {', '.join(end.saved[:10])}."
    if end.dirty:
        text += f" Uncommitted changes of the workspace were left as they are: {', '.join(end.dirty[:10])}."
    return ToolOutcome(f"{text} Remove the worktree with remove_worktree when it is no longer needed.", data=data)

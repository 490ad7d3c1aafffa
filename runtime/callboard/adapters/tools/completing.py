"""`complete_task`: a task is done, and its check, if it has one, has passed.

The check is a shell command that others set; it runs where the agent's other commands run, and its verdict decides. It
was judged like a call of `bash` before this tool is reached (`engine/tasks/checking.py`), and only that very command
is run: `check` in the input is the runtime's, and stands for nothing when a model writes it.

What a cut leaves behind: a check that may have run, whatever came of it. What still runs of it is ended, the task is
not completed, and the model is told to call again. So no task is completed without its check, and no check runs twice
by itself: in one process a check that passed is remembered while its call loses races for the row.
"""

from __future__ import annotations

from pathlib import Path

from pydantic import Field

from callboard.adapters.launcher import find_process
from callboard.adapters.tools.base import GivenTool, failed
from callboard.adapters.tools.store_tool import Input
from callboard.adapters.tools.task_rows import board_of, find_task, holder_of, taken_or_let_go
from callboard.core.tasks import laws as tasks
from callboard.ports.tool import Finished, ToolContext, ToolOutcome
from callboard.words.errors import ToolRefused
from callboard.words.values import Json, Task

CHECK_SECONDS = 600.0
"""How long a check may run: as long as the longest call of `bash`."""
_SHOWN = 4_000
"""Characters of a check's output that are told, from its end."""
_KEPT = 2_000
"""Characters of it that stand in the task as evidence."""

_COMPLETE = """\
Your task is done: say what came out of it in result, and in evidence what shows that (the tests you ran and how they \
ended, the files you changed). Complete it only after you checked it. If the task has a check, that command is run \
now, and the task is completed only when it passes; else you see how its output ends, mend it, and call this again. \
The answer tells which tasks it made ready."""


class Complete(Input):
    task_id: str
    result: str = Field(default="", description="What came out of it")
    evidence: str = Field(default="", description="What shows that it is done")
    check: str = Field(default="", description="Leave it out: the runtime fills in the task's check")


class CompleteTask(GivenTool[Complete]):
    """See the module. Its effect class is `attach`: the check of a call is found again by the call."""

    def __init__(self) -> None:
        super().__init__("complete_task", _COMPLETE, Complete, effect="attach")
        self._passed: dict[str, tuple[str, str, str]] = {}
        """Agent -> the newest call whose check passed, that check, what it wrote."""

    async def prepare(self, given: Json, context: ToolContext) -> Json:
        """Refuse before anything is run what the laws refuse whatever the check says."""
        asked = self.read(given)
        task, _ = find_task(context, asked.task_id)
        tasks.may_complete(task, holder_of(context))
        if task.check and not context.folders.root.is_dir():
            raise ToolRefused(f"complete_task: your folder {context.folders.root} does not exist any more")
        return {"check": task.check} if task.check else {}

    async def act(self, given: Complete, context: ToolContext) -> ToolOutcome:
        task, _ = find_task(context, given.task_id)
        tasks.may_complete(task, holder_of(context))  # also where it runs again: nothing is started for nothing
        if not task.check:
            return _completed(given, context, None)
        if task.check != given.check:
            raise ToolRefused(f"{task.id} is not completed: its check was changed just now. Call complete_task again")
        call, check, shown = self._passed.get(context.spec.name, ("", "", ""))
        if (call, check) != (context.call, task.check):
            finished = await context.launcher.run(task.check, context.folders.root, CHECK_SECONDS, _output(context))
            if finished.timed_out or finished.exit_code != 0:
                return _refused(task, finished)
            shown = finished.output
            self._passed[context.spec.name] = (context.call, task.check, shown)
        return _completed(given, context, shown)

    async def repair(self, given: Json, marks: Json, context: ToolContext) -> ToolOutcome | None:
        """Run it anew where there is no check; else say that the check must run again."""
        if not marks.get("check"):
            return None
        asked = self.read(given)
        writing = find_process(_output(context))
        alive = writing is not None and await context.launcher.end(*writing)
        said = " It was still running and has been ended." if alive else ""
        return failed(
            f"The runtime stopped while the check of {asked.task_id} was under way, so nobody knows how it ended, and "
            f"the task is not completed.{said} Look at what the check changes, then call complete_task again."
        )


def _completed(given: Complete, context: ToolContext, output: str | None) -> ToolOutcome:
    """The task's last row, as the board stands now: it may have been taken away while the check ran. `output`: what the
    check wrote when it passed; None: there is none."""
    old, revision = find_task(context, given.task_id)
    evidence, check = given.evidence, None
    if output is not None:
        shown = output.strip()[-_KEPT:]
        evidence = "\n".join(part for part in (evidence, f"[check passed] {given.check}", shown) if part)
        check = {"exit_code": 0, "output": shown}
    passed = None if output is None else given.check
    task = tasks.complete(old, holder_of(context), context.now, given.result, evidence, passed)
    freed = tasks.unblocked_by(task, board_of(context))
    text = f"Completed {task.id}." + (" Its check passed." if passed else "")
    if freed:
        text += " Ready now: " + "; ".join(f"{other.id} {other.subject}" for other in freed)
    return taken_or_let_go(context, task, revision, text, unblocked=[other.id for other in freed], check=check)


def _refused(task: Task, finished: Finished) -> ToolOutcome:
    """What the model reads of a check that did not pass; the task stays its own."""
    how = f"ended with exit code {finished.exit_code}"
    if finished.timed_out:
        how = f"did not end within {CHECK_SECONDS:g} s and was ended"
    elif finished.exit_code is None:
        how = "was ended from outside"
    output = finished.output.strip()
    end = f"[...]\n{output[-_SHOWN:]}" if len(output) > _SHOWN else output or "(no output)"
    whole = f"\nThe whole output is in {finished.whole}." if finished.whole else ""
    text = (
        f"{task.id} is not completed: its check {how}.\n$ {task.check}\n{end}{whole}\n"
        "Mend it and call complete_task again. If you cannot, call fail_task or release_task and say why."
    )
    return failed(text, task_id=task.id, check={"exit_code": finished.exit_code, "output": output[-_SHOWN:]})


def _output(context: ToolContext) -> Path:
    """Where the check's output goes: it follows from the call, so that it is found after a crash."""
    return context.folders.tool_results / f"{context.call}.out"

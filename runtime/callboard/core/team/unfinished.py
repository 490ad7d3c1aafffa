"""Tasks that a teammate still holds when its model ends the turn: it is reminded, keeps them, or releases them. Pure.

The first row that applies decides:

    situation at the end of a turn with a held task             result
    ----------------------------------------------------------  -----------------------------------------------------
    the agent asked somebody in this turn, or waits for a       it keeps the task, and the lead is informed
    person or for its own background task
    it was not reminded in this turn                            it is reminded, and the turn continues
    it was reminded, and one of its messages has no reply yet   it keeps the task, and the lead is woken and informed
    it was reminded                                             it releases the task, and the lead is informed
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from callboard.core.agent.state import AgentState
from callboard.types.records import Task


def reminder_due(state: AgentState) -> bool:
    """Return True if the turn continues with a reminder of the held tasks."""
    turn = state.turn
    if state.me.kind != "teammate" or turn is None or not state.work.tasks or turn.reminded or state.lifecycle.leaving:
        return False
    return not _waits_now(state)


def keeps_tasks(state: AgentState) -> bool:
    """Return True if the agent keeps its tasks at the end of the turn.

    An agent keeps its tasks if it will continue after an expected event.
    """
    return not state.lifecycle.leaving and bool(_waits_now(state) or state.waits.replies)


def _waits_now(state: AgentState) -> bool:
    """Return True if the agent waits for the result of its own action: an answer, a reply, a command."""
    background = any(command.status == "running" for command in state.work.background.values())
    return background or bool(state.waits.questions) or any(name in state.waits.replies for name in state.waits.fresh)


def reminder_words(tasks: Mapping[str, str]) -> str:
    """Return the reminder for the model. `tasks`: id -> subject."""
    return (
        f"You are about to end your turn, and {names_of(tasks)} is still in your hands, unfinished. If it is done, "
        "call complete_task. If it is not, go on with it now. If it cannot be done, call fail_task; to give it back, "
        "call release_task. If you need an answer first, ask for it with send_message and end your turn: the task "
        "stays yours. If you end your turn without any of this, the task is released, and the lead learns that it is "
        "unfinished."
    )


def kept_tasks_text(state: AgentState) -> str:
    """Return the message to the lead about a teammate that ended its turn and keeps its tasks."""
    waits = [*sorted(state.waits.replies)]
    if state.waits.questions:
        waits.append("an answer of the person")
    running = [task.began for task in state.work.background.values() if task.status == "running"]
    if any(not began.agent for began in running):
        waits.append("its background command")
    waits += [f"its subagent {began.agent}" for began in running if began.agent]
    tasks = names_of(state.work.tasks)
    return f"{state.me.name} still holds {tasks}, which is unfinished, and waits for {', '.join(waits)}."


def fates(tasks: Iterable[Task]) -> str:
    """Return what happened to released tasks. `tasks`: their current rows."""
    return ", and ".join(f"{task.id} ({task.subject}); {_fate(task)}" for task in tasks)


def names_of(tasks: Mapping[str, str]) -> str:
    """Return `task_x (its subject)` for each."""
    return ", ".join(f"{task} ({subject})" for task, subject in tasks.items())


def _fate(task: Task) -> str:
    return f"it has failed after {task.attempts} tries" if task.status == "failed" else "the task is free again"

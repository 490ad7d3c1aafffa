"""How the task board reads: a task on one line and whole, and what its new owner is told. Pure."""

from __future__ import annotations

from callboard.core.tasks.file_claims import overlaps
from callboard.core.tasks.laws import Tasks, blockers
from callboard.words.values import Task


def task_line(task: Task, board: Tasks) -> str:
    """One task on one line: `task_… [in_progress, alice] Write the parser (src/parser.py)`."""
    waits = blockers(task, board)
    facts = [task.status if task.status != "pending" or waits else "ready"]
    if task.owner:
        facts.append(task.owner)
    if task.reserved_for:
        facts.append(f"kept for {task.reserved_for}")
    if waits and task.status in {"pending", "failed"}:
        facts.append("waits for " + ", ".join(waits))
    line = f"{task.id} [{', '.join(facts)}] {task.subject}"
    return f"{line} ({', '.join(task.files)})" if task.files else line


def board_lines(shown: list[Task], board: Tasks) -> str:
    """Tasks, a line each, and below those in progress who works on the same files."""
    lines: list[str] = []
    for task in shown:
        lines.append(task_line(task, board))
        if task.status == "in_progress":
            lines += [f"  {words}" for words in _meetings(task, board)]
    return "\n".join(lines)


def task_words(task: Task, board: Tasks) -> str:
    """A task whole: what it says, what it waits for, what came of it."""
    lines = [
        task_line(task, board),
        f"created by {task.created_by}, attempts: {task.attempts}",
        *_meetings(task, board),
    ]
    check = f"{task.check}\n(set by {task.check_by or 'nobody known'}; complete_task runs it)" if task.check else ""
    parts = (
        ("Description", task.description),
        ("Check", check),
        ("Result", task.result),
        ("Evidence", task.evidence),
    )
    for title, text in parts:
        if text:
            lines += ["", f"{title}:", text]
    return "\n".join(lines)


def owner_words(task: Task, board: Tasks) -> str:
    """What who has just claimed a task must know of it beside its subject: each in a paragraph; empty for nothing."""
    said: list[str] = []
    if task.description:
        said.append(task.description)
    if task.result:
        said.append(f"From the last try: {task.result}")
    if task.files:
        said.append(f"Its files: {', '.join(task.files)}")
    if met := _meetings(task, board):
        said.append("\n".join([*met, "Agree with them who changes what before you change these."]))
    if task.check:
        said.append(f"Its check, which complete_task runs and which must pass: {task.check}")
    return "\n\n".join(said)


def taken_words(task: Task, by: str, to: str) -> str:
    """What an agent is told whose task was taken from it."""
    whose = f"It is kept for {to} now" if to else "It is open to anybody now"
    if task.status == "cancelled":
        whose = "It is cancelled: nobody needs it any more"
    return (
        f"{by} took {task.id} from you: {task.subject}. {whose}. Stop working on it, and leave what you have changed "
        "as it is; you cannot complete it any more. Go on with what else you have to do."
    )


def _meetings(task: Task, board: Tasks) -> list[str]:
    """Who else works on this task's files."""
    return [f"{one.owner} works on {', '.join(files)} too, for {one.id}" for one, files in overlaps(task, board)]

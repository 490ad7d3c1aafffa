"""Text forms of the task board: a task on one line and in full, and the text for its new owner. Pure."""

from __future__ import annotations

from callboard.core.tasks.board import Tasks, blockers
from callboard.core.tasks.file_claims import overlaps
from callboard.types.records import Task


def task_line(task: Task, board: Tasks) -> str:
    """Return one task on one line: `task_… [in_progress, alice] Write the parser (src/parser.py)`."""
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


def board_lines(tasks: list[Task], board: Tasks) -> str:
    """Return one line for each task, followed for tasks in progress by other agents that work on the same files."""
    lines: list[str] = []
    for task in tasks:
        lines.append(task_line(task, board))
        if task.status == "in_progress":
            lines += [f"  {line}" for line in _agents_on_same_files(task, board)]
    return "\n".join(lines)


def task_words(task: Task, board: Tasks) -> str:
    """Return all of a task: its content, its dependencies, its result."""
    lines = [
        task_line(task, board),
        f"created by {task.created_by}, attempts: {task.attempts}",
        *_agents_on_same_files(task, board),
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
    """Return the information for a task's new owner in addition to its subject, one paragraph each; empty for none."""
    paragraphs: list[str] = []
    if task.description:
        paragraphs.append(task.description)
    if task.result:
        paragraphs.append(f"From the last try: {task.result}")
    if task.files:
        paragraphs.append(f"Its files: {', '.join(task.files)}")
    if met := _agents_on_same_files(task, board):
        paragraphs.append("\n".join([*met, "Agree with them who changes what before you change these."]))
    if task.check:
        paragraphs.append(f"Its check, which complete_task runs and which must pass: {task.check}")
    return "\n\n".join(paragraphs)


def reassigned_text(task: Task, by: str, to: str) -> str:
    """Return the text for an agent whose task was taken away."""
    whose = f"It is now reserved for {to}" if to else "Any agent may claim it now"
    if task.status == "cancelled":
        whose = "It is cancelled: it is no longer needed"
    return (
        f"{by} took {task.id} from you: {task.subject}. {whose}. Stop working on it, and leave what you have changed "
        "as it is; you can no longer complete it. Continue with your other work."
    )


def _agents_on_same_files(task: Task, board: Tasks) -> list[str]:
    """Return the other agents that work on this task's files, a line each."""
    return [f"{other.owner} works on {', '.join(files)} too, for {other.id}" for other, files in overlaps(task, board)]

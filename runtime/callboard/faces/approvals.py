"""Requests as a person meets them: shown whole, asked one at a time, answered in words.

Two approvers: `PersonApprover` asks through whatever way of asking its face has; `PlanPolicy` is `--yes`. A plan and
what a tool is about to run are shown in full, control characters spelled out, so that nothing hides from the one who
approves it. An empty answer or the end of input is no.

It refuses to read a keyboard, and `--yes` never answers a permission.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from typing import Any, cast

import anyio

from callboard.faces.terminal import Block, Line, visible
from callboard.ports.world import Answer
from callboard.words.values import Json, Request

Ask = Callable[[Block, str], Awaitable[str | None]]
"""Show a block, put a question, return the line that was typed; None at the end of input."""

_YES, _NO = frozenset({"y", "yes"}), frozenset({"n", "no"})


class PersonApprover:
    """Asks the person at this terminal. A question that somebody else answers first is taken back."""

    def __init__(self, ask: Ask, *, leave_plans: bool = False) -> None:
        """`leave_plans`: a policy answers plans; this person is not asked."""
        self._ask, self._leave_plans = ask, leave_plans
        self._one_at_a_time = anyio.Lock()

    async def answer(self, request: Request) -> Answer | None:
        """Ask until the words can be read as an answer. None for what is not this person's to answer."""
        if "person" not in request.may_answer or (self._leave_plans and request.kind == "plan"):
            return None
        async with self._one_at_a_time:
            shown = request_block(request)
            while True:
                typed = await self._ask(shown, question_of(request))
                read = read_answer(request, typed)
                if read is not None:
                    return read
                shown = Block((Line("y or n, please; words after it go to the agent", "warn"),))


class PlanPolicy:
    """`--yes`: approves plans that a person or a policy may answer. Everything else is left to others."""

    async def answer(self, request: Request) -> Answer | None:
        """Approved, for a plan. A plan that is for a person gets it as the person's word: they typed `--yes`."""
        by = next((who for who in ("policy", "person") if who in request.may_answer), None)
        if request.kind != "plan" or by is None:
            return None
        return Answer("approved", by, "approved by --yes")


def question_of(request: Request) -> str:
    """The words before the cursor."""
    if request.kind == "question":
        return "your answer> "
    return f"{'approve this plan' if request.kind == 'plan' else 'allow this'}? [y/N, a reason may follow]> "


def read_answer(request: Request, typed: str | None) -> Answer | None:
    """What the typed line means for this request; None: it cannot be read, ask again."""
    words = (typed or "").strip()
    if request.kind == "question":
        return _answer_to_question(request, words)
    first, _, reason = words.partition(" ")
    reason = reason.strip()
    verdict = first.rstrip(",.:;").lower()
    if verdict in _YES:
        return Answer("approved", "person", reason)
    if verdict in _NO or not words:
        return Answer("rejected", "person", reason)
    return None


def request_block(request: Request) -> Block:
    """The request in full."""
    head = Line(f"{request.kind} {request.id}: {_one_line(request.subject)}", "strong", request.asked_by)
    return Block((head, *_BODIES[request.kind](request)))


def _answer_to_question(request: Request, words: str) -> Answer:
    options = _options(request)
    if words.isdigit() and 1 <= int(words) <= len(options):
        return Answer("answered", "person", options[int(words) - 1])
    return Answer("answered", "person", words or "(the person gave no answer)")


def _plan(request: Request) -> tuple[Line, ...]:
    lines = _text(str(request.payload.get("plan", "")), "  ")
    options = _options(request)
    return lines + tuple(Line(f"  option {number}: {option}") for number, option in enumerate(options, 1))


def _permission(request: Request) -> tuple[Line, ...]:
    payload = request.payload
    given: Any = payload.get("input")
    lines = [Line(f"  tool: {_one_line(str(payload.get('tool', '?')))}")]
    if isinstance(given, dict):
        for field, value in cast("Json", given).items():
            text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
            lines += _text(text, "    ", f"  {_one_line(str(field))}: ")
    lines += [
        Line(f"  {name}: {_one_line(str(payload[name]))}", "dim") for name in ("rule", "why") if payload.get(name)
    ]
    return tuple(lines)


def _question(request: Request) -> tuple[Line, ...]:
    lines = _text(str(request.payload.get("question", request.subject)), "  ")
    return lines + tuple(Line(f"  {number}. {option}") for number, option in enumerate(_options(request), 1))


def _shutdown(request: Request) -> tuple[Line, ...]:
    return _text(str(request.payload.get("why", "")), "  ") if request.payload.get("why") else ()


_BODIES: dict[str, Callable[[Request], tuple[Line, ...]]] = {
    "plan": _plan,
    "permission": _permission,
    "question": _question,
    "shutdown": _shutdown,
}


def _options(request: Request) -> list[str]:
    given: Any = request.payload.get("options")
    return [_one_line(str(option)) for option in cast("list[Any]", given)] if isinstance(given, list | tuple) else []


def _text(text: str, indent: str, first: str | None = None) -> tuple[Line, ...]:
    """Line for line, all of it."""
    lines = text.split("\n")
    head = indent if first is None else first
    return (Line(head + visible(lines[0])), *(Line(indent + visible(line)) for line in lines[1:]))


def _one_line(text: str) -> str:
    return visible(text).replace("\n", "\\n")

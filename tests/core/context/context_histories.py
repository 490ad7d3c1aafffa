"""Histories for the tests of the context pipeline: made step by step, beside one that is never edited."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from hypothesis import strategies as st

from callboard.core.context import pipeline
from callboard.core.context.pipeline import STAGES
from callboard.core.context.stage_input import REGION_STAGE, Situation
from callboard.core.context.stages.summarize import region_edits
from callboard.core.context.summary import request as summary
from callboard.core.context.view.conversation import (
    Conversation,
    add_assistant,
    add_user,
    apply_edits,
    usage_seen,
    with_overhead,
)
from callboard.core.context.view.invariants import edit_faults, invariants
from callboard.types.messages import Edit, Placed, StateBlock, SummaryWanted
from callboard.types.records import Json, Usage

STATE = StateBlock(todos=("[pending] ship it",), plan="1. look\n2. leap", files_read=("a.py",))


def png(width: int, height: int) -> Json:
    """An image block of that size."""
    head = b"\x89PNG\r\n\x1a\n" + b"\0\0\0\rIHDR" + width.to_bytes(4, "big") + height.to_bytes(4, "big") + b"\0" * 40
    source = {"type": "base64", "media_type": "image/png", "data": base64.b64encode(head).decode()}
    return {"type": "image", "source": source}


def text(value: str) -> Json:
    return {"type": "text", "text": value}


def said(value: str, source: Any = "person", *, pinned: bool = False) -> Placed:
    return Placed(data=text(value), source=source, pinned=pinned)


def call(use_id: str, name: str = "bash", **given: Any) -> Json:
    return {"type": "tool_use", "id": use_id, "name": name, "input": given}


def result(use_id: str, content: str | list[Json], *, error: bool = False) -> Placed:
    data: Json = {"type": "tool_result", "tool_use_id": use_id, "content": content}
    return Placed(data={**data, "is_error": True} if error else data, source="tool")


@dataclass
class Session:
    """An agent's conversation, and the same history without its edits."""

    view: Conversation = field(default_factory=lambda: with_overhead(Conversation(), 500))
    past: Conversation = field(default_factory=lambda: with_overhead(Conversation(), 500))
    edits: list[Edit] = field(default_factory=list[Edit])
    seq: int = 0
    turn: str = "t0"
    faults: list[str] = field(default_factory=list[str])

    def user(self, *placed: Placed) -> Session:
        self.seq += 1
        self.view, self.past = (
            add_user(conv, self.seq, placed, at=float(self.seq), turn=self.turn) for conv in (self.view, self.past)
        )
        return self

    def reply(self, *blocks: Json) -> Session:
        self.seq += 1
        self.view, self.past = (
            add_assistant(conv, self.seq, blocks, at=float(self.seq), turn=self.turn) for conv in (self.view, self.past)
        )
        return self

    def step(self, content: str | list[Json], name: str = "bash", *, error: bool = False, calls: int = 1) -> Session:
        """A reply with calls, and their results."""
        ids = [f"toolu_{self.seq}_{number}" for number in range(calls)]
        self.reply(*(call(use_id, name, command="ls") for use_id in ids))
        return self.user(*(result(use_id, content, error=error) for use_id in ids))

    def next_turn(self) -> Session:
        self.turn = f"t{int(self.turn[1:]) + 1}"
        return self

    def edit(self, edits: Sequence[Edit]) -> Session:
        """Apply edits, and note which laws that breaks."""
        before = self.view
        self.view = apply_edits(before, edits)
        self.edits += edits
        sent = before.messages[-1].role == "user" if before.messages else True
        self.faults += edit_faults(before, self.view) + invariants(self.view.messages, sent=sent)
        return self

    def ask(self, stage: str, budget: int, **params: Any) -> list[Edit] | SummaryWanted | None:
        """What a stage wants. `transcript` and `state` are of the situation, all else are its parameters."""
        situation = Situation(
            now=0.0,
            folder="/out",
            transcript=params.pop("transcript", ""),
            state=params.pop("state", None),
            batch=params.pop("batch", ""),
            tried=params.pop("tried", frozenset()),
        )
        return STAGES[stage](self.view, budget, situation, params)

    def run(self, stage: str, budget: int, **params: Any) -> Session:
        """Ask a stage and do what it wants, a summary included."""
        return self.do(self.ask(stage, budget, **params), budget)

    def do(self, found: list[Edit] | SummaryWanted | None, budget: int) -> Session:
        return self.edit(self.summarised(found, budget) if isinstance(found, SummaryWanted) else found or [])

    def summarised(self, wanted: SummaryWanted, budget: int, words: str = "- did things") -> list[Edit]:
        """The edits that the engine would make of this summary."""
        if wanted.stage == REGION_STAGE:
            return region_edits(
                self.view, wanted, words, state=STATE, transcript="/t/lead-9.jsonl", history=self.past.messages
            )
        return summary.summary_edits(self.view, wanted, words, state=STATE, transcript="/t/lead-9.jsonl", budget=budget)


SCRIPTS = ("word ", "漢字の", "héß ", "🦀 ", "<system-reminder>\n")
Script = Literal[0, 1, 2, 3, 4]

STEPS = st.lists(
    st.tuples(
        st.sampled_from(["work", "work", "work", "say", "end", "mail", "paused"]),
        st.sampled_from([1, 30, 300, 3_000, 12_000]),
        st.sampled_from(SCRIPTS),
        st.integers(1, 3),
        st.sampled_from(
            [None, None, "persist_large_results", "clear_old_results", "summarize_all", "react", "truncate_oldest"]
        ),
    ),
    max_size=14,
)
"""What happens: kind, size, script, number of calls, and the stage that is run after it."""


def played(steps: Sequence[Any], session: Session | None = None, first: int = 0) -> Session:
    """The session in which these things happened: a fresh one, or one that goes on with step number `first`."""
    session = session or Session().user(said("Do the work.", pinned=False))
    for number, (kind, length, script, calls, stage) in enumerate(steps, first):
        _happens(session, kind, script * (1 + length // len(script)), calls, number)
        if stage is not None:
            _compacts(session, stage, number)
    return session


def _happens(session: Session, kind: str, words: str, calls: int, number: int) -> None:
    if kind == "work":
        ids = [f"toolu_{session.seq}_{index}" for index in range(calls)]
        session.reply({"type": "thinking", "thinking": "hm", "signature": "s"}, *(call(use_id) for use_id in ids))
        contents: list[str | list[Json]] = [words, [text(words), png(640, 480)], [text(words)]]
        results = [result(use_id, contents[index], error=index == 2) for index, use_id in enumerate(ids)]
        session.user(*results, said("<system-reminder>\nx\n</system-reminder>", "reminder"))
        session.view = usage_seen(session.view, Usage(input_tokens=session.view.tokens + 700, output_tokens=9))
    elif kind == "say":
        session.user(said(words[:900], "person"))
    elif kind == "mail":
        session.user(said(words[:900], "inbox", pinned=number % 3 == 0))
    elif kind == "paused":
        session.reply(text("still "))
    else:
        session.reply(text("Done. "), text(""))
        if number % 2:
            wanted = pipeline.manual_summary(session.view, "all")
            session.do(wanted, 2_000)
        session.next_turn().user(said(words[:900], "schedule" if number % 3 else "person"))


def _compacts(session: Session, stage: str, number: int) -> None:
    if session.view.messages[-1].role != "user":
        return
    params: dict[str, Any] = {
        "persist_large_results": {"trigger": ("total", "each")[number % 2], "total": 9_000, "each": 3_000},
        "clear_old_results": {"over": 0.0, "at_least": 0.0, "keep": number % 4},
        "summarize_all": {"at_least": 0.0, "resummarize": ("never", "allow")[number % 2]},
        "truncate_oldest": {"force": number % 2 == 0, "transcript": "/t/x.jsonl"},
    }.get(stage, {})
    session.run(stage, 1_500, **params)

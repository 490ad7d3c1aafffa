"""Random lives under a pipeline: before each model call its stages are asked until none has anything to do."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from hypothesis import strategies as st
from tests.adapters.models.rehearsal_requests import RULES, TOOLS
from tests.core.context.context_histories import Session, call, png, result, said, text

from callboard.adapters.models.rehearsal.api import sign
from callboard.adapters.models.rehearsal.strict import CheckContext, check_request
from callboard.core.context.pipeline import StageCall, next_stage
from callboard.core.context.stage_input import Situation, failed_at, still_failed
from callboard.types.agent_spec import StageSpec
from callboard.types.records import Json

PAUSED = CheckContext(RULES.models, paused=True)

WORDS = ("word ", "漢字の", "héß ", "🦀 ", "<system-reminder>\n", "</persisted-output> ")

HAPPENS = st.lists(
    st.tuples(
        st.sampled_from(["work", "work", "work", "burst", "say", "end", "mail", "cut", "paused"]),
        st.sampled_from([1, 300, 3_000, 12_000, 40_000, 120_000]),
        st.sampled_from(WORDS),
        st.integers(1, 3),
    ),
    max_size=16,
)
"""What happens in a life: kind, characters, script, calls of a reply."""


@dataclass
class Life:
    """A session under a pipeline. `works`: whether the summary with this number can be made."""

    pipeline: Sequence[StageSpec]
    budget: int
    works: Callable[[int], bool]
    session: Session = field(default_factory=lambda: Session().user(said("Do the work.")))
    asked: int = 0
    """Summaries asked for."""
    failed: int = 0
    tried: frozenset[tuple[str, int]] = frozenset()
    batch: str = ""
    stages: list[str] = field(default_factory=list[str])
    """Those that edited, in order."""

    def lived(self, happens: Sequence[Any]) -> Life:
        for kind, length, script, calls in happens:
            self._happens(kind, script * (1 + length // len(script)), calls)
            self._settle()
        return self

    def _happens(self, kind: str, words: str, calls: int) -> None:
        session = self.session
        match kind:
            case "work":
                self._work(words, calls)
            case "burst":
                for _number in range(12):
                    self._work(words[:200], 1)
            case "say" | "mail":
                session.user(said(words[:900], "person" if kind == "say" else "inbox", pinned=calls == 3))
            case "cut":  # at the highest output limit: the text stays without its calls
                session.reply(thought("hm"), text(words[:6_000])).user(said("Continue.", "reminder"))
            case "paused":
                session.reply(text("still"))
            case _:
                session.reply(text("Done. ")).next_turn()
                self.failed, self.tried = 0, frozenset()
                session.user(said(words[:900], ("schedule", "person", "inbox")[calls - 1], pinned=False))

    def _work(self, words: str, calls: int) -> None:
        session = self.session
        ids = [f"toolu_{session.seq}_{index}" for index in range(calls)]
        names = ("read", "bash", "read_file")
        session.reply(thought("hm"), *(call(use_id, names[index]) for index, use_id in enumerate(ids)))
        contents: list[str | list[Json]] = [words, [text(words[:900]), png(640, 480)], [text(words)]]
        results = [result(use_id, contents[index], error=index == 2) for index, use_id in enumerate(ids)]
        session.user(*results, said("<system-reminder>\nx\n</system-reminder>", "reminder"))
        self.batch = ""

    def _settle(self) -> None:
        """Ask the stages as `decide` does, and check what would be sent."""
        for number in range(100):
            given: dict[str, Any] = {"tried": self.tried, "summaries_failed": self.failed, "batch": self.batch}
            here = Situation(now=0.0, folder="/out", transcript=f"/t/{self.session.seq}.jsonl", **given)
            found = next_stage(self.pipeline, self.session.view, self.budget, here)
            if found is None:
                assert not number or accepted(self.session) is None
                return
            self._do(found)
        raise AssertionError(f"the pipeline comes to no end: {self.stages[-5:]}")

    def _do(self, found: StageCall) -> None:
        session = self.session
        edits = list(found.edits)
        if found.summary is not None:
            self.asked += 1
            edits = session.summarised(found.summary, self.budget) if self.works(self.asked) else []
            self.failed = 0 if edits else self.failed + 1
            if not edits:
                self.tried |= {failed_at(found.summary, session.view.revision)}
                return
        before = session.view.tokens
        session.edit(edits)
        assert session.faults == [], (found.stage, edits)
        assert session.view.tokens < before, (found.stage, edits)
        self.tried, self.batch = still_failed(self.tried), found.stage
        self.stages.append(found.stage)


def thought(words: str) -> Json:
    """Thinking as the rehearsal model signs it."""
    return {"type": "thinking", "thinking": words, "signature": sign("rehearsal", words)}


def accepted(session: Session) -> object:
    """What the service has against the view, if anything."""
    messages = json.loads(b"[" + b",".join(one.wire for one in session.view.messages) + b"]")
    body = {"model": "rehearsal", "max_tokens": 4_000, "messages": messages, "tools": TOOLS}
    return check_request(body, PAUSED)

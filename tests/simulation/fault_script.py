"""What the model says in the little session of the fault matrix: a lead, a subagent, a teammate, three summaries.

Each agent does its steps in order, and a step counts as done when its reply went out whole: so whoever is asked again,
after a retry or after a turn that failed, continues where it was. What was done twice, or by half, can be read in the
files: each line is written by one call.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from callboard.adapters.models.rehearsal.api import sign, tool_use_id

Json = dict[str, Any]

MODEL = "claude-sonnet-5-5"
PROMPT = "Do the three things, and have them checked."
GO_ON = "Go on, please."
DONE, NOTHING_ELSE, WAITING = "All is done.", "Nothing else.", "I wait for amy."
FILES = {"lead.log": ("one", "two", "three"), "sub.log": ("one",), "amy.log": ("one", "two")}
"""The files, and the lines that stand in them once all is done."""
END = "-- end --"
ROLES = ("lead", "teammate", "subagent", "summary")
STEPS = ("first", "middle", "last")

Call = tuple[str, Json]


@dataclass(frozen=True)
class Said:
    """One reply: its text and its calls, perhaps after a thought."""

    text: str
    calls: Sequence[Call] = ()
    thought: str = ""


def _look(name: str) -> Call:
    return "read_file", {"path": name}


def _write(name: str, line: str) -> Call:
    return "edit_file", {"path": name, "old_text": END, "new_text": f"{line}\n{END}"}


def _task() -> Call:
    return "task", {"description": "Have it checked", "prompt": "Check it, please.", "agent_type": "general"}


def _spawn() -> Call:
    return "spawn_teammate", {"name": "amy", "role": "helps", "prompt": "Do your two things."}


_COMPACT: Call = ("compact", {})
_BEFORE = (
    Said("I look at what there is.", [_look("lead.log"), _look("long.txt")]),
    Said("I tidy up.", [_COMPACT]),
    Said("I have it checked, and do the first.", [_write("lead.log", "one"), _task(), _look("long.txt")], "First."),
    Said("The second, with help.", [_write("lead.log", "two"), _spawn()], "Two hands more."),
    Said("I tidy up again.", [_COMPACT]),
)
_AFTER = (
    Said("The third.", [_write("lead.log", "three"), _look("long.txt")], "Nearly there."),
    Said("I tidy up once more.", [_COMPACT]),
    Said("I look once more.", [_look("lead.log"), _look("long.txt")]),
    Said(DONE),
)
_SUB = (
    Said("I look.", [_look("sub.log"), _look("long.txt")]),
    Said("I check it.", [_write("sub.log", "one")], "Is it so?"),
    Said("It is as it should be."),
)
_AMY = (
    Said("I look.", [_look("amy.log"), _look("long.txt")]),
    Said("My first.", [_write("amy.log", "one")], "Slowly."),
    Said("My second.", [_write("amy.log", "two")]),
    Said("I report.", [("report", {"status": "done", "result": "amy is done"})]),
)
_SUMMARY = Said("- The goal: do three things, have them checked.\n- The log of the lead holds what was done.")
TARGETS: Mapping[str, Mapping[str, Said]] = {
    "lead": dict(zip(STEPS, (_BEFORE[0], _BEFORE[3], _AFTER[-1]), strict=True)),
    "subagent": dict(zip(STEPS, _SUB, strict=True)),
    "teammate": dict(zip(STEPS, (_AMY[0], _AMY[1], _AMY[3]), strict=True)),
    "summary": dict.fromkeys(STEPS, _SUMMARY),
}
"""Which reply is meant by a role's first, middle and last step. Of summaries: which of the three."""


@dataclass
class Script:
    """How far everybody is."""

    steps: dict[str, list[Said]] = field(
        default_factory=lambda: {"lead": [*_BEFORE, *_AFTER], "teammate": list(_AMY), "subagent": list(_SUB)}
    )
    """What is left to be said, the next first."""
    saying: dict[str, tuple[str, Said]] = field(default_factory=dict[str, tuple[str, Said]])
    """What each one is being told: the number of the call, and the reply."""
    whole: set[str] = field(default_factory=set[str])
    """Who got it whole."""
    heard: str = ""
    """What amy let the lead know: `result`, or `error`."""

    def says(self, role: str, ordinal: str, newest: str) -> Said:
        """The reply to a call; `newest` is the text of its last message. Asked again, it is the same."""
        number, said = self.saying.get(role, ("", None))
        if said is not None and number == ordinal:
            return said
        steps = self.steps[role]
        if role in self.whole and said in steps:
            steps.remove(said)
        self.whole.discard(role)
        said = self._lead(newest) if role == "lead" else (steps[0] if steps else Said(NOTHING_ELSE))
        self.saying[role] = (ordinal, said)
        return said

    def redo(self, role: str) -> None:
        """The last call of what was said, where there is one, could not be made: say that one again."""
        said, steps = self.saying[role][1], self.steps[role]
        steps[steps.index(said)] = Said("Again.", said.calls[-1:]) if said.calls else said
        if not said.calls:
            self.whole.add(role)

    def _lead(self, newest: str) -> Said:
        for kind in re.findall(r'<inbox from=\\?"amy\\?" type=\\?"(result|error)', newest):
            self.heard = kind
        steps = self.steps["lead"]
        if len(steps) > len(_AFTER):
            return steps[0]
        if self.heard == "error":
            if GO_ON not in newest:
                return Said("amy failed.")
            self.heard = "asked"
            return Said("She goes on.", [("send_message", {"to": "amy", "content": "Go on."})])
        if self.heard != "result":
            return Said(WAITING)
        return steps[0] if steps else Said(NOTHING_ELSE)


def blocks_of(said: Said, seed: str) -> list[Json]:
    """The reply as the API's blocks."""
    thought = {"type": "thinking", "thinking": said.thought, "signature": sign(MODEL, said.thought)}
    blocks: list[Json] = [thought] if said.thought else []
    blocks.append({"type": "text", "text": said.text})
    for place, (name, given) in enumerate(said.calls):
        blocks.append({"type": "tool_use", "id": tool_use_id(f"{seed}/{place}"), "name": name, "input": given})
    return blocks

"""Coding sessions for `context_cost.py`, drawn from a seed: the work of each step, and the content that it must see.

A session is a sequence of tasks. A task searches with `grep`, reads two to four files (some of them again, from an
earlier task), edits them in turn, runs tests in between, and sometimes uses a fact of an earlier output. Each file ends
with a unique mark, and each fact is a unique word, so that the player can tell whether a request still shows it.
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass, field
from typing import Any

Json = dict[str, Any]

FILES = 400
"""Files in the workspace: enough for a long session."""
AGAIN = 0.08
"""Probability that a file of a task was used by an earlier task (docs/decisions/0012 has the effect on cost)."""
GOES_BY_A_FACT = 0.25
"""Probability that an edit needs a fact of recent outputs; a fifth of these facts are from any earlier task."""
NOTED = 0.75
"""Probability that the model repeats the finding of an output in its own words."""
TASKS_A_PROMPT = 4
"""Number of tasks between two prompts of the person."""

_WORDS = (
    "def return self value index state result for while if else import from class None True False "
    "error raise with as config path name token cache index query row column "
    "parse render build check update delete insert handler"
)


@dataclass(frozen=True)
class Need:
    """Content that a request must show before a step, and the step that brings it back."""

    mark: str
    again: Work


@dataclass(frozen=True)
class Work:
    """One model step: a call, the text beside it, and its result. A step without a tool ends the work on a prompt."""

    tool: str
    input: Json
    result: str
    words: str
    needs: tuple[Need, ...] = ()
    prompt: str = ""
    """Next prompt of the person, if the turn ends after this step."""
    idle: float = 12.0
    """Number of seconds until the next request."""


@dataclass
class Session:
    """The steps of a session, in order."""

    first: str
    works: list[Work] = field(default_factory=list[Work])


def make_session(seed: int, steps: int, *, away: float = 0.0, again: float = AGAIN) -> Session:
    """Return a session of `steps` steps.

    `away`: probability that the person answers only after the cached prefix has expired. `again`: see `AGAIN`.
    """
    return _Maker(random.Random(f"session {seed}"), away, again).made(steps)


class _Maker:
    """Generator of a session. A longer session begins with the shorter session of the same seed."""

    def __init__(self, rng: random.Random, away: float, again: float) -> None:
        self.rng = rng
        self.away = away
        self.again = again
        words = _WORDS.split()
        self.text = " ".join(rng.choice(words) + rng.choice(("", "()", ":", " =", ",", "\n   ")) for _ in range(40_000))
        self.sizes = [int(_log_uniform(rng, 2_000, 20_000)) for _ in range(FILES)]
        self.read: dict[int, Work] = {}
        """Step that last read each file."""
        self.tasks: list[list[int]] = []
        self.facts: list[Need] = []
        self.fresh: list[Need] = []
        """Facts in recent outputs of this task."""
        self.found = ""
        self.session = Session("Work through the list of changes in TASKS.md. " + self._prose(600))

    def made(self, steps: int) -> Session:
        works = self.session.works
        while len(works) < steps:
            self._task()
            if len(self.tasks) % TASKS_A_PROMPT == 0:
                idle = 1_200.0 if self.rng.random() < self.away else self.rng.uniform(20, 200)
                works.append(Work("", {}, "", self._prose(400), prompt=self._prose(300), idle=idle))
        del works[steps:]
        return self.session

    def _task(self) -> None:
        self.fresh = []
        files = self._files()
        self.tasks.append(files)
        self._shell("grep", {"pattern": self._prose(14), "path": "src"}, 1_000, 4_000)
        for number in files:
            if number not in self.read:
                self._read(number)
        for _ in range(self.rng.randint(1, 2)):
            for number in files:
                if self.rng.random() < 0.75:
                    self._edit(number)
            self._shell("bash", {"command": f"pytest -q tests/test_{files[0]}.py"}, 1_000, 8_000)

    def _files(self) -> list[int]:
        chosen: list[int] = []
        for _ in range(self.rng.randint(2, 4)):
            earlier = [one for task in self.tasks for one in task if one not in chosen]
            if earlier and self.rng.random() < self.again:
                # A file of the previous task is the most likely; one of ten tasks ago is a tenth as likely.
                ages = [
                    1 / (len(self.tasks) - n) for n, task in enumerate(self.tasks) for one in task if one in earlier
                ]
                chosen.append(self.rng.choices(earlier, ages[: len(earlier)])[0])
            else:
                chosen.append(len(self.read) + len(chosen) if len(self.read) + 4 < FILES else self.rng.randrange(FILES))
        return list(dict.fromkeys(chosen))

    def _read(self, number: int) -> None:
        path = f"src/module_{number}.py"
        body = self._prose(self.sizes[number])
        work = Work("read_file", {"path": path}, f"{body}\n# end of {path}", self._words(300))
        self.read[number] = work
        self._does(work)

    def _edit(self, number: int) -> None:
        path = f"src/module_{number}.py"
        old, new = (
            self._prose(int(_log_uniform(self.rng, 80, 700))),
            self._prose(int(_log_uniform(self.rng, 120, 1_500))),
        )
        needs = [Need(f"# end of {path}", self.read[number])]
        if self.fresh and self.rng.random() < GOES_BY_A_FACT:
            needs.append(self.rng.choice(self.facts if self.rng.random() < 0.2 else self.fresh))
        diff = f"Edited {path}\n- {old[:400]}\n+ {new[:800]}"
        given = {"path": path, "old_text": old, "new_text": new}
        self._does(Work("edit_file", given, diff, self._words(300), tuple(needs)))

    def _shell(self, tool: str, given: Json, least: int, most: int) -> None:
        fact = f"fact_{len(self.facts)}_{self.rng.randrange(10**6):06}"
        size = int(_log_uniform(self.rng, least, most))
        before = self.rng.randrange(size)
        output = f"{self._prose(before)} {fact} {self._prose(size - before)}"
        work = Work(tool, given, output, self._words(200))
        self._does(work)
        need = Need(fact, work)
        self.facts.append(need)
        self.fresh = [*self.fresh[-2:], need]
        if self.rng.random() < NOTED:
            self.found = f"Found {fact}. "

    def _does(self, work: Work) -> None:
        self.session.works.append(work)

    def _words(self, most: int) -> str:
        """Return the text beside a call, which mentions facts of the previous output."""
        found, self.found = self.found, ""
        return found + self._prose(self.rng.randint(40, most))

    def _prose(self, size: int) -> str:
        start = self.rng.randrange(len(self.text) - size - 1) if size < len(self.text) - 1 else 0
        return self.text[start : start + size].strip() or "on"


def _log_uniform(rng: random.Random, least: float, most: float) -> float:
    return math.exp(rng.uniform(math.log(least), math.log(most)))

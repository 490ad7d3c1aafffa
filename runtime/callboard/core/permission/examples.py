"""Examples beside rules: a call and what is to be decided of it, and what is to be said where that is not so. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from callboard.core.permission.given import MODES, GivenCall, GivenRules, Known, Misread, call_of_words, read_given
from callboard.core.permission.values import Decision, Mode, Verdict
from callboard.words.values import Json


@dataclass(frozen=True, slots=True)
class Example:
    """One example, and where it stands. `call`: a shell command, or an object with `tool` and `input`."""

    call: str | Json
    decision: Decision
    place: str
    by: str | None = None
    mode: Mode | None = None
    agent: str = "lead"
    folder: str = ""

    @property
    def shown(self) -> str:
        """The call in one line."""
        if isinstance(self.call, str):
            return self.call
        given: Json = self.call.get("input") or {}
        named = next((str(given[name]) for name in ("command", "path", "file_path") if name in given), "")
        return f"{self.call.get('tool')} {named}".strip()


@dataclass(frozen=True, slots=True)
class Tried:
    """An example and what was decided of it, by its rules as they stand now."""

    example: Example
    verdict: Verdict

    @property
    def wrong(self) -> str:
        """What is not as the example says; empty when all is."""
        wanted, got = self.example, self.verdict
        if got.decision != wanted.decision:
            return f"expected {wanted.decision}, got {got.decision}"
        if wanted.by is not None and got.rule != wanted.by:
            return f"expected by {wanted.by}, got by {got.rule}"
        return ""


def call_of(example: Example, mode: Mode, rules: GivenRules, known: Mapping[str, Known]) -> GivenCall:
    """The call of an example, with the mode and the rules in force for its agent. Raises `Misread`."""
    if isinstance(example.call, str):
        tool, fields = call_of_words("bash", example.call, known)
    else:
        if odd := sorted(set(example.call) - {"tool", "input"}):
            raise Misread(f"the call of an example has `tool` and `input`, not `{odd[0]}`")
        given = read_given(example.call, known)
        tool, fields = given.tool, given.input
    return GivenCall(tool, fields, MODES[example.mode or mode], rules, example.folder)

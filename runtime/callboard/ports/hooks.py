"""The port of hooks that are no Python callables (commands, addresses), and on what terms any hook is registered."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from callboard.words.hooks import Caller, HandlerResult
from callboard.words.values import Json


class HookHandler(Protocol):
    """One handler that speaks JSON in the compatible form (docs/hooks.md, "Commands")."""

    @property
    def name(self) -> str:
        """One line for people: what it runs."""
        ...

    @property
    def timeout(self) -> float | None:
        """Seconds that its file gives it; None: the registry's."""
        ...

    async def run(self, event_json: Json, timeout: float) -> HandlerResult:
        """Tell it the event and return what it answers, within `timeout` seconds; never changes `event_json`.

        A crash, a time-out and an answer that is none are `HandlerResult.fault`. Cancelled: nothing of it goes on.
        Raises nothing; if it does all the same, that counts as its fault.
        """
        ...


@dataclass(frozen=True, slots=True)
class Terms:
    """What a hook's file says about it, besides what it runs."""

    fail_open: bool = False
    """Its faults stop nothing: they are told."""
    background: bool = False
    """Nobody waits for it, and it decides nothing. For handlers only."""
    wakes: bool = False
    """In the background: exit code 2 wakes its agent."""
    once: bool = False
    """Heard once in this process."""
    agent_type: str = ""
    """Only agents of this type hear it; empty: all."""
    skill: str = ""
    """Only agents that have loaded this skill hear it; empty: all."""

    def heard_by(self, by: Caller) -> bool:
        """Whether what happens to that agent concerns the hook."""
        return (not self.agent_type or self.agent_type == by.agent_type) and (not self.skill or self.skill in by.skills)


@dataclass(frozen=True, slots=True)
class Late:
    """What a hook that ran in the background has to say, when nobody waits for it any more."""

    hook: str
    """`hook NAME (SOURCE)`."""
    by: Caller
    """The agent that it is about."""
    context: tuple[str, ...] = ()
    """For the model: at its next turn."""
    notices: tuple[str, ...] = ()
    wake: bool = False
    """Now, even when it rests."""

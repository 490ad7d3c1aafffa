"""Port of hooks that are not Python callables (commands, URLs), and the terms of a registration."""

from __future__ import annotations

from typing import Protocol

from callboard.types.hook_answers import Caller, HandlerResult
from callboard.types.lazy_dataclass import dataclass
from callboard.types.records import Json


class HookHandler(Protocol):
    """Handler that exchanges JSON in the compatible form (docs/hooks.md, "Commands")."""

    @property
    def name(self) -> str:
        """Return the name for users, one line: the command or the URL."""
        ...

    @property
    def timeout(self) -> float | None:
        """Return the time limit of its file in seconds; None: that of the registry."""
        ...

    async def run(self, event_json: Json, timeout: float) -> HandlerResult:
        """Send the event and return the answers, within `timeout` seconds. Never changes `event_json`.

        A crash, a timeout and an invalid answer are `HandlerResult.fault`. If cancelled, it leaves nothing running.
        Raises nothing; an exception counts as a fault of the handler.
        """
        ...


@dataclass(frozen=True, slots=True)
class HookTerms:
    """Terms of a hook in its file, beside the code that it runs."""

    fail_open: bool = False
    """True if a fault of the hook blocks nothing and is only reported."""
    background: bool = False
    """True if the hook runs in the background and decides nothing. For handlers only."""
    wakes: bool = False
    """True if exit code 2 of a background hook wakes its agent."""
    once: bool = False
    """True if the hook runs only once in this process."""
    agent_type: str = ""
    """Agent type that the hook applies to; empty: all."""
    skill: str = ""
    """Skill that an agent must have loaded for the hook to apply; empty: all agents."""

    def heard_by(self, by: Caller) -> bool:
        """Return True if the hook applies to events of this agent."""
        return (not self.agent_type or self.agent_type == by.agent_type) and (not self.skill or self.skill in by.skills)


@dataclass(frozen=True, slots=True)
class LateHookOutput:
    """Output of a background hook, available after its event has passed."""

    hook: str
    """`hook NAME (SOURCE)`."""
    by: Caller
    """Agent of the event."""
    context: tuple[str, ...] = ()
    """Text for the model, for its next turn."""
    notices: tuple[str, ...] = ()
    wake: bool = False
    """True if the agent is to be woken."""

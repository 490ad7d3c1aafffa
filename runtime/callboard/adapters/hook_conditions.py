"""A hook with an `if`: run only for calls that its rule names. Everything else about it is the hook's own."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import anyio.to_thread

from callboard.adapters.shell import BashParser
from callboard.core.hooks.conditions import analysis_of, call_told, is_meant, read_condition
from callboard.core.permission.values import Parsed, Rule, ToolCall
from callboard.ports.hooks import HookHandler
from callboard.words.hooks import HandlerResult
from callboard.words.values import Json

MOST_ROUNDS = 8
"""Scripts inside scripts are followed this deep."""


@dataclass(frozen=True, slots=True)
class OnlyIf:
    """A `HookHandler` that asks another one only about the calls that a rule names. Raises ValueError for no rule."""

    handler: HookHandler
    condition: str
    _rule: Rule = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_rule", read_condition(self.condition))

    @property
    def name(self) -> str:
        """The handler's."""
        return self.handler.name

    @property
    def timeout(self) -> float | None:
        """The handler's."""
        return self.handler.timeout

    async def run(self, event_json: Json, timeout: float) -> HandlerResult:
        """See `HookHandler.run`: no answer where the rule names something else."""
        call = call_told(event_json)
        if call is None or not await self._names(call, str(event_json.get("cwd", "/"))):
            return HandlerResult()
        return await self.handler.run(event_json, timeout)

    async def _names(self, call: ToolCall, root: str) -> bool:
        home = str(Path.home())
        if call.name != "bash" or self._rule.specifier is None:
            return is_meant(self._rule, call, {}, root, home)
        return await anyio.to_thread.run_sync(self._names_command, call, root, home)

    def _names_command(self, call: ToolCall, root: str, home: str) -> bool:
        """The same for a command: its scripts are parsed, which starts a program. In a worker thread."""
        command, parser = call.input.get("command"), BashParser()
        scripts: dict[str, Parsed] = {}
        missing = (command,) if isinstance(command, str) else ()
        for _ in range(MOST_ROUNDS):
            scripts |= {text: parser.parse(text) for text in missing}
            missing = analysis_of(str(command), scripts, home).missing
            if not missing:
                break
        return is_meant(self._rule, call, scripts, root, home)

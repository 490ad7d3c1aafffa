"""`${VAR}` and `${VAR:-default}` in the entries of MCP servers. Pure: the variables come in as a mapping."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from callboard.words.mcp import ServerEntry

_VARIABLE = re.compile(r"\$\{(?P<name>[A-Za-z_][A-Za-z0-9_]*)(?::-(?P<default>[^}]*))?\}")


@dataclass(slots=True)
class Expanding:
    """Expands texts, and remembers which variables had no value."""

    variables: Mapping[str, str]
    unset: dict[str, None] = field(default_factory=dict[str, None])
    """Names without value and default, in order; they stay as they are written."""

    def text(self, text: str) -> str:
        """The text with its variables' values. A default counts also for an empty value, as in a shell."""
        return _VARIABLE.sub(self._value, text)

    def texts(self, given: Mapping[str, str]) -> dict[str, str]:
        """The same for the values of a mapping."""
        return {name: self.text(value) for name, value in given.items()}

    def _value(self, found: re.Match[str]) -> str:
        name, default = found["name"], found["default"]
        value = self.variables.get(name)
        if default is not None:
            return value or default
        if value is None:
            self.unset[name] = None
            return found[0]
        return value


def expanded(entry: ServerEntry, variables: Mapping[str, str]) -> tuple[ServerEntry, tuple[str, ...]]:
    """The entry with its variables' values in command, args, env, url and headers, and those that have none."""
    expanding = Expanding(variables)
    filled = replace(
        entry,
        command=expanding.text(entry.command),
        args=tuple(expanding.text(one) for one in entry.args),
        env=expanding.texts(entry.env),
        url=expanding.text(entry.url),
        headers=expanding.texts(entry.headers),
    )
    return filled, tuple(expanding.unset)

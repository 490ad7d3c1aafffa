"""Options of a session's lead that its row keeps: its forks begin with them, and a resume keeps the appended text.

A resumed lead has its other options already: its journal has its type, its tools, and its prompt.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, cast

from callboard.sessions.options import LeadOptions
from callboard.types.agent_spec import ThinkingChoice
from callboard.types.records import Json

KEPT_LEAD = "lead"
"""Name of these options among the settings of a session's row."""
_KEPT = ("agent_type", "effort", "thinking", "instructions", "appended", "tools", "disallowed")


def kept_of(lead: LeadOptions) -> Json:
    """Return the options to keep, without those that were not given."""
    default = LeadOptions()
    options: Json = {}
    for name in _KEPT:
        value = getattr(lead, name)
        if value != getattr(default, name):
            options[name] = list(cast("tuple[str, ...]", value)) if isinstance(value, tuple) else value
    if lead.thinking is not None:
        options["thinking"] = lead.thinking.model_dump(mode="json")
    return options


def with_kept(lead: LeadOptions, settings: Json, *, resumed: bool) -> LeadOptions:
    """Return the options of this run, with those that the session keeps. `settings`: those in its row.

    `resumed`: the session goes on, so that only the appended text is needed.
    """
    options: dict[str, Any] = dict(settings.get(KEPT_LEAD, {}))
    if resumed:
        return replace(lead, appended=lead.appended or options.get("appended", ""))
    if "thinking" in options:
        options["thinking"] = ThinkingChoice.model_validate(options["thinking"])
    lists = {name: tuple(cast("list[str]", value)) for name, value in options.items() if isinstance(value, list)}
    return replace(lead, **{**options, **lists})

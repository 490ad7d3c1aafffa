"""Fields of a schedule as people write them.

Options, front matter and an agent's tool use the same fields, parsed here.

A value is text (`20m`, `true`, `cost_usd=2`) or the parsed value (600, True, a mapping). An error names the field and
says what to write. Pure: the time is an argument.
"""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from itertools import pairwise
from types import MappingProxyType
from typing import Any, cast, get_args
from zoneinfo import ZoneInfo

from callboard.core.permissions.rules import parse_rule
from callboard.core.scheduling.cron import CronInvalid, parse_cron
from callboard.core.scheduling.trigger import OneTime, parse_when
from callboard.types.agent_spec import READ_AS
from callboard.types.choices import choose
from callboard.types.late_pattern import late_pattern
from callboard.types.lazy_dataclass import dataclass
from callboard.types.records import Budget, PermissionMode
from callboard.types.schedules import Schedule

LONGEST_PROMPT = 100_000
"""Maximum characters: about 25,000 tokens at each fire."""
LONGEST_SECONDS = 10 * 366 * 86_400.0
MOST_RETRIES = 10
MOST_CATCH_UP_RUNS = 1_000
"""Maximum number of missed runs that `misfire: all` may run later."""

_NAME = late_pattern(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_AGENT_TYPE = late_pattern(r"(?:[A-Za-z0-9][\w.-]{0,63}:){0,8}[a-z0-9][a-z0-9-]{0,63}")
"""Name of a type; `plugin:name` or `plugin:folder:name` for a type of a plugin."""
_DURATION_PART = late_pattern(r"([0-9]{1,9})(d|h|m|s)")
_UNITS = MappingProxyType({"d": 86_400.0, "h": 3_600.0, "m": 60.0, "s": 1.0})
_NONE_WORDS = frozenset({"", "none"})
_MODES = get_args(PermissionMode)
_RIGHTS = MappingProxyType({"permission_mode": "mode", "allow": "allow", "ask": "ask", "deny": "deny"})
_BUDGET_KINDS: Mapping[str, bool] = MappingProxyType(
    {"cost_usd": False, "tokens": True, "steps": True, "seconds": False}
)
"""Kinds of a budget; True: whole numbers only."""


class InvalidField(ValueError):
    """A field with an impossible value. `field` is one of `FIELDS`; `what` describes the error and what to write."""

    def __init__(self, field: str, problem: str) -> None:
        super().__init__(f"{field}: {problem}")
        self.field = field
        self.what = problem


@dataclass(frozen=True, slots=True)
class _ParseContext:
    """Context for parsing a value: the time zone, and the time. None: the value is not checked against the time."""

    zone: str
    now: float | None


def with_fields(schedule: Schedule, values: Mapping[str, object], now: float | None = None) -> Schedule:
    """Return the schedule with these field values in place of its own. Raises `InvalidField`, nothing else.

    `now` (unix seconds): refuse an end in the past, and accept `expires` also as a duration from now (`30d`). An agent
    type without a context means a new agent for each fire. Limits of a budget, and rights, replace those of the same
    kind.
    """
    for name in values:
        if name not in FIELDS:
            raise InvalidField(name, f"is not a field of a schedule: {nearest_field(name)}")
    zone = _read_text("timezone", values["timezone"]) if "timezone" in values else schedule.timezone
    _check_zone(zone)
    update: dict[str, Any] = {}
    rights: dict[str, Any] = {}
    for name, value in values.items():
        target = rights if name in _RIGHTS else update
        key, reader = _READERS[name]
        target[key] = reader(name, value, _ParseContext(zone, now))
    if update.get("target", "lead") != "lead" and "context" not in update and schedule.context == "lead":
        update["context"] = "fresh"
    if update.get("context") == "lead" and "target" not in update:
        update["target"] = "lead"
    for name in ("budget", "fire_budget"):
        if name in update and not _is_none(values[name]):
            own: Budget = getattr(schedule, name)
            update[name] = own.model_copy(update=update[name].model_dump(exclude_none=True))
    update["rights"] = schedule.rights.model_copy(update=rights)
    return _check_schedule(schedule.model_copy(update=update))


def nearest_field(name: str) -> str:
    """Return `choose timezone, cron or ...`: all fields, the nearest first."""
    likely = difflib.get_close_matches(name.lower().replace("-", "_"), FIELDS, n=1, cutoff=0.5)
    return choose([*likely, *(field for field in FIELDS if field not in likely)])


def read_duration(field: str, value: object) -> float:
    """Return the seconds of `90s`, `20m`, `1h30m`, `2d`, or of a plain number. Raises `InvalidField`."""
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        seconds = float(value)
    else:
        text = str(value).strip().lower()
        parts = _DURATION_PART.findall(text)
        if text.replace(".", "", 1).isdecimal() and len(text) <= 12:
            seconds = float(text)
        elif parts and "".join(number + unit for number, unit in parts) == text:
            seconds = sum(int(number) * _UNITS[unit] for number, unit in parts)
        else:
            raise InvalidField(field, f"{_quoted(value)} is not a duration: write it as 90s, 20m, 1h30m or 2d")
    if not 0 <= seconds <= LONGEST_SECONDS:
        raise InvalidField(field, f"{_quoted(value)} is out of range: write 0 to ten years (3650d)")
    return seconds


def format_duration(seconds: float) -> str:
    """Return the shortest text for a duration: `1h30m`; `0s` for none."""
    remaining = round(seconds)
    text = ""
    for unit, size in _UNITS.items():
        count, remaining = divmod(remaining, int(size))
        text += f"{count}{unit}" if count else ""
    return text or "0s"


def format_rough_duration(seconds: float) -> str:
    """Return a duration for a person, in its two largest units: `1824d19h` for 157,663,559 seconds."""
    for first, second in pairwise(_UNITS.values()):
        if seconds >= first:
            return format_duration(seconds - seconds % second)
    return format_duration(seconds)


def _check_schedule(schedule: Schedule) -> Schedule:
    """Check the schedule as a whole and return it. Raises `InvalidField`."""
    try:
        when = parse_when(schedule.cron, schedule.timezone)
    except CronInvalid as wrong:
        raise InvalidField("cron", str(wrong)) from wrong
    if isinstance(when, OneTime) and schedule.recurring:
        schedule = schedule.model_copy(update={"recurring": False})
    if not schedule.prompt.strip():
        raise InvalidField("prompt", "is empty: say what is to be done when it fires")
    if schedule.context == "lead" and schedule.target != "lead":
        problem = (
            "is for separate agents: write context fresh (an agent for each fire) or own (one agent for all fires)"
        )
        raise InvalidField("agent_type", problem)
    return schedule


def _check_zone(zone: str) -> None:
    try:
        parse_cron("@daily", zone)
    except CronInvalid as wrong:
        raise InvalidField("timezone", str(wrong).removeprefix("timezone: ")) from wrong


def _read_text(field: str, value: object, _: _ParseContext | None = None) -> str:
    if not isinstance(value, (str, int, float)) or isinstance(value, bool):
        raise InvalidField(field, f"{_quoted(value)} is not text")
    text = str(value).strip()
    if "\0" in text:
        raise InvalidField(field, "holds a NUL character: take it out")
    return text


def _read_prompt(field: str, value: object, context: _ParseContext) -> str:
    text = _read_text(field, value)
    if len(text) > LONGEST_PROMPT:
        raise InvalidField(
            field, f"has {len(text):,} characters: write at most {LONGEST_PROMPT:,}, or name a file in it"
        )
    return text


def _read_name(field: str, value: object, context: _ParseContext) -> str:
    text = _read_text(field, "" if value is None else value)
    if text in _NONE_WORDS:
        return ""
    if not _NAME.fullmatch(text) or text.startswith("cron_"):
        problem = "write letters, digits, dots, hyphens and underscores, at most 64, and not cron_ in front"
        raise InvalidField(field, f"{_quoted(text)} is not a valid name for a schedule: {problem}")
    return text


def _read_agent_type(field: str, value: object, context: _ParseContext) -> str:
    text = _read_text(field, "" if value is None else value)
    if text in _NONE_WORDS:
        return "lead"
    if not _AGENT_TYPE.fullmatch(text):
        raise InvalidField(field, f"{_quoted(text)} is not an agent type: write a name as `agents list` shows it")
    return text


def _choice_reader(*choices: str) -> Callable[[str, object, _ParseContext], str]:
    def read(field: str, value: object, context: _ParseContext) -> str:
        text = _read_text(field, value).lower()
        if text not in choices:
            likely = difflib.get_close_matches(text, choices, n=1)
            hint = f"; did you mean {likely[0]}?" if likely else ""
            raise InvalidField(field, f"{_quoted(text)} is not one of {', '.join(choices)}{hint}")
        return text

    return read


def _read_flag(field: str, value: object, context: _ParseContext) -> bool:
    if isinstance(value, bool):
        return value
    text = str(value).strip().lower()
    if text in {"true", "yes", "on"}:
        return True
    if text in {"false", "no", "off"}:
        return False
    raise InvalidField(field, f"{_quoted(value)} is neither true nor false")


def _read_once(field: str, value: object, context: _ParseContext) -> bool:
    return not _read_flag(field, value, context)


def _read_optional_duration(field: str, value: object, context: _ParseContext) -> float | None:
    return None if _is_none(value) else read_duration(field, value)


def _read_positive_duration(field: str, value: object, context: _ParseContext) -> float | None:
    seconds = _read_optional_duration(field, value, context)
    if seconds == 0:
        raise InvalidField(field, "0 leaves no time: write a span such as 20m, or none for no limit")
    return seconds


def _integer_reader(low: int, high: int) -> Callable[[str, object, _ParseContext], int]:
    def read(field: str, value: object, context: _ParseContext) -> int:
        text = str(value).strip()
        if isinstance(value, bool) or not re.fullmatch(r"[0-9]{1,9}", text) or not low <= int(text) <= high:
            raise InvalidField(field, f"{_quoted(value)} is out of range: write a whole number from {low} to {high:,}")
        return int(text)

    return read


def _read_max_runs(field: str, value: object, context: _ParseContext) -> int | None:
    return None if _is_none(value) else _integer_reader(1, 999_999_999)(field, value, context)


def _read_expiry(field: str, value: object, context: _ParseContext) -> float | None:
    if _is_none(value):
        return None
    text = _read_text(field, value)
    if _DURATION_PART.match(text) and context.now is not None:
        return context.now + read_duration(field, text)
    try:
        moment = datetime.fromisoformat(text)
        at = (moment if moment.tzinfo else moment.replace(tzinfo=ZoneInfo(context.zone))).timestamp()
    except (ValueError, OverflowError) as wrong:
        hint = "2030-12-01T09:00, with an offset or in its time zone"
        raise InvalidField(field, f"{_quoted(value)} is not a time: write it as {hint}") from wrong
    if context.now is not None and at <= context.now:
        raise InvalidField(field, f"{_quoted(value)} is past: write a future time")
    return at


def _read_mode(field: str, value: object, context: _ParseContext) -> str:
    text = _read_text(field, "" if value is None else value)
    if text in _NONE_WORDS:
        return ""
    mode = READ_AS.get(text, text)
    if mode not in _MODES:
        likely = difflib.get_close_matches(text, _MODES, n=1)
        hint = f"; did you mean {likely[0]}?" if likely else ""
        raise InvalidField(field, f"{_quoted(text)} is not one of {', '.join(_MODES)}{hint}")
    return mode


def _read_rules(field: str, value: object, context: _ParseContext) -> tuple[str, ...]:
    """Return rules from a list, or from one text separated by commas outside brackets."""
    rules: list[str] = []
    for rule in _split_list(value):
        try:
            parse_rule(rule)
        except ValueError as wrong:
            raise InvalidField(field, str(wrong)) from wrong
        rules.append(rule)
    return tuple(rules)


def _split_list(value: object) -> Sequence[str]:
    if isinstance(value, (list, tuple)):
        items = [str(item).strip() for item in cast("Sequence[object]", value)]
    else:
        items = [] if _is_none(value) else [item.strip() for item in re.split(r",(?![^(]*\))", str(value))]
    return [item for item in items if item.lower() not in _NONE_WORDS]


def _read_budget(field: str, value: object, context: _ParseContext) -> Budget:
    """Return a budget from a mapping of kinds and limits, or from `cost_usd=2, steps=9`."""
    if _is_none(value):
        return Budget()
    pairs = (
        cast("Mapping[object, object]", value).items() if isinstance(value, Mapping) else _split_limits(field, value)
    )
    limits: dict[str, float] = {}
    for name, limit in pairs:
        kind = str(name).strip()
        text = str(limit).strip()
        if limit is None:
            continue
        if kind not in _BUDGET_KINDS:
            raise InvalidField(field, f"unknown kind {_quoted(kind)}: {choose(_BUDGET_KINDS)}, as in cost_usd=1.5")
        whole = _BUDGET_KINDS[kind]
        try:
            limits[kind] = int(text) if whole else float(text)
        except ValueError:
            limits[kind] = math.nan
        if isinstance(limit, bool) or not 0 <= limits[kind] < math.inf:
            raise InvalidField(field, f"{kind}: {_quoted(limit)} is not a {'whole ' if whole else ''}number from 0 on")
    return Budget.model_validate(limits)


def _split_limits(field: str, value: object) -> list[tuple[str, str]]:
    items = _split_list(value)
    for item in items:
        if "=" not in item:
            raise InvalidField(field, f"{_quoted(item)} is not a limit: write KIND=N, as in cost_usd=1.5")
    return [(kind, limit) for kind, _, limit in (item.partition("=") for item in items)]


def _is_none(value: object) -> bool:
    """Return True for `none`, also as the only value of a list: an option that may be repeated gives a list."""
    if isinstance(value, list | tuple):
        values = cast("Sequence[object]", value)
        return len(values) == 1 and _is_none(values[0])
    return value is None or (isinstance(value, str) and value.strip().lower() in _NONE_WORDS)


def _quoted(value: object) -> str:
    text = str(value)
    return ascii(text if len(text) <= 60 else text[:57] + "...")


_Reader = Callable[[str, object, _ParseContext], object]
_READERS: Mapping[str, tuple[str, _Reader]] = MappingProxyType(
    {
        "cron": ("cron", _read_text),
        "prompt": ("prompt", _read_prompt),
        "name": ("name", _read_name),
        "timezone": ("timezone", _read_text),
        "once": ("recurring", _read_once),
        "recurring": ("recurring", _read_flag),
        "durable": ("durable", _read_flag),
        "enabled": ("enabled", _read_flag),
        "misfire": ("misfire", _choice_reader("skip", "latest", "all")),
        "misfire_cap": ("misfire_cap", _integer_reader(1, MOST_CATCH_UP_RUNS)),
        "window": ("window", _read_optional_duration),
        "overlap": ("overlap", _choice_reader("skip", "queue", "replace", "parallel")),
        "context": ("context", _choice_reader("lead", "fresh", "own")),
        "agent_type": ("target", _read_agent_type),
        "deliver": ("deliver", _choice_reader("turn", "step")),
        "jitter": ("jitter", _read_optional_duration),
        "deadline": ("deadline", _read_positive_duration),
        "retries": ("retries", _integer_reader(0, MOST_RETRIES)),
        "budget": ("budget", _read_budget),
        "fire_budget": ("fire_budget", _read_budget),
        "permission_mode": ("mode", _read_mode),
        "allow": ("allow", _read_rules),
        "ask": ("ask", _read_rules),
        "deny": ("deny", _read_rules),
        "expires": ("expires", _read_expiry),
        "max_runs": ("max_runs", _read_max_runs),
    }
)
"""Field -> its name in `Schedule` (for rights: in `ScheduleRights`), and its parser."""

FIELDS: Sequence[str] = tuple(_READERS)
"""Names of the fields, as written in front matter; options are the same names with hyphens."""

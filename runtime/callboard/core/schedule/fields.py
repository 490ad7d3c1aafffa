"""The fields of a schedule as people write them: options, front matter and an agent's tool say the same, read once.

A value comes as text (`20m`, `true`, `cost_usd=2`) or as what it means (600, True, a mapping). What is wrong is told
with the field's name and with what to write. Pure: the time comes in as an argument.
"""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from types import MappingProxyType
from typing import Any, cast, get_args
from zoneinfo import ZoneInfo

from callboard.core.permission.rules import parse_rule
from callboard.core.schedule.cron import CronInvalid, parse_cron
from callboard.core.schedule.when import Once, parse_when
from callboard.words.schedules import Schedule
from callboard.words.specs import READ_AS, PermissionMode
from callboard.words.values import Budget

LONGEST_PROMPT = 100_000
"""Characters: about 25,000 tokens at each fire."""
LONGEST_SECONDS = 10 * 366 * 86_400.0
MOST_RETRIES = 10
MOST_MADE_UP = 1_000
"""Missed runs that `misfire: all` may make up."""

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_AGENT_TYPE = re.compile(r"[a-z][a-z0-9-]{0,63}")
_PART = re.compile(r"([0-9]{1,9})(d|h|m|s)")
_UNITS = MappingProxyType({"d": 86_400.0, "h": 3_600.0, "m": 60.0, "s": 1.0})
_NONE = frozenset({"", "none"})
_MODES = get_args(PermissionMode)
_RIGHTS = MappingProxyType({"permission_mode": "mode", "allow": "allow", "ask": "ask", "deny": "deny"})
_KINDS: Mapping[str, bool] = MappingProxyType({"cost_usd": False, "tokens": True, "steps": True, "seconds": False})
"""Kinds of a budget; True: whole numbers."""


class FieldWrong(ValueError):
    """A field that says what cannot be. `field` is one of `FIELDS`; `what` says what is wrong and what to write."""

    def __init__(self, field: str, what: str) -> None:
        super().__init__(f"{field}: {what}")
        self.field, self.what = field, what


@dataclass(frozen=True, slots=True)
class _Around:
    """What a value is read by: the time zone, and the time; None: it is not to be held against the time."""

    zone: str
    now: float | None


def with_fields(schedule: Schedule, given: Mapping[str, object], now: float | None = None) -> Schedule:
    """The schedule with the fields that are given in place of its own. Raises `FieldWrong`, nothing else.

    `now` (unix seconds): refuse an end that is past, and read `expires` also as a span from now (`30d`). An agent type
    without a context means an agent made for each fire. Limits of a budget, and rights, take the place of those of
    their kind.
    """
    for name in given:
        if name not in FIELDS:
            raise FieldWrong(name, f"is no field of a schedule: {nearest_field(name)}")
    zone = _text("timezone", given["timezone"]) if "timezone" in given else schedule.timezone
    _known_zone(zone)
    update: dict[str, Any] = {}
    rights: dict[str, Any] = {}
    for name, value in given.items():
        target = rights if name in _RIGHTS else update
        key, reader = _READERS[name]
        target[key] = reader(name, value, _Around(zone, now))
    if update.get("target", "lead") != "lead" and "context" not in update and schedule.context == "lead":
        update["context"] = "fresh"
    if update.get("context") == "lead" and "target" not in update:
        update["target"] = "lead"
    for name in ("budget", "fire_budget"):
        if name in update and not _is_none(given[name]):
            own: Budget = getattr(schedule, name)
            update[name] = own.model_copy(update=update[name].model_dump(exclude_none=True))
    update["rights"] = schedule.rights.model_copy(update=rights)
    return _checked(schedule.model_copy(update=update))


def nearest_field(name: str) -> str:
    """`did you mean timezone?`, or all there are."""
    likely = difflib.get_close_matches(name.lower().replace("-", "_"), FIELDS, n=1, cutoff=0.5)
    return f"did you mean {likely[0]}?" if likely else f"there are {', '.join(FIELDS)}"


def read_duration(field: str, value: object) -> float:
    """Seconds of `90s`, `20m`, `1h30m`, `2d`, or of a plain number. Raises `FieldWrong`."""
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        seconds = float(value)
    else:
        text = str(value).strip().lower()
        parts = _PART.findall(text)
        if text.replace(".", "", 1).isdecimal() and len(text) <= 12:
            seconds = float(text)
        elif parts and "".join(number + unit for number, unit in parts) == text:
            seconds = sum(int(number) * _UNITS[unit] for number, unit in parts)
        else:
            raise FieldWrong(field, f"{_shown(value)} is no span of time: write it as 90s, 20m, 1h30m or 2d")
    if not 0 <= seconds <= LONGEST_SECONDS:
        raise FieldWrong(field, f"{_shown(value)} is out of range: write 0 to ten years (3650d)")
    return seconds


def duration_words(seconds: float) -> str:
    """The shortest such text: `1h30m`; `0s` for none."""
    left, words = round(seconds), ""
    for unit, size in _UNITS.items():
        count, left = divmod(left, int(size))
        words += f"{count}{unit}" if count else ""
    return words or "0s"


def _checked(schedule: Schedule) -> Schedule:
    """The schedule as a whole. Raises `FieldWrong`."""
    try:
        when = parse_when(schedule.cron, schedule.timezone)
    except CronInvalid as wrong:
        raise FieldWrong("cron", str(wrong)) from wrong
    if isinstance(when, Once) and schedule.recurring:
        schedule = schedule.model_copy(update={"recurring": False})
    if not schedule.prompt.strip():
        raise FieldWrong("prompt", "is empty: say what is to be done when it fires")
    if schedule.context == "lead" and schedule.target != "lead":
        why = "is for agents of its own: write context fresh (an agent for each fire) or own (one that goes on)"
        raise FieldWrong("agent_type", why)
    return schedule


def _known_zone(zone: str) -> None:
    try:
        parse_cron("@daily", zone)
    except CronInvalid as wrong:
        raise FieldWrong("timezone", str(wrong).removeprefix("timezone: ")) from wrong


def _text(field: str, value: object, _: _Around | None = None) -> str:
    if not isinstance(value, (str, int, float)) or isinstance(value, bool):
        raise FieldWrong(field, f"{_shown(value)} is no text")
    text = str(value).strip()
    if "\0" in text:
        raise FieldWrong(field, "holds a NUL character: take it out")
    return text


def _prompt(field: str, value: object, around: _Around) -> str:
    text = _text(field, value)
    if len(text) > LONGEST_PROMPT:
        raise FieldWrong(field, f"has {len(text):,} characters: write at most {LONGEST_PROMPT:,}, or name a file in it")
    return text


def _name(field: str, value: object, around: _Around) -> str:
    text = _text(field, "" if value is None else value)
    if text in _NONE:
        return ""
    if not _NAME.fullmatch(text) or text.startswith("cron_"):
        what = "write letters, digits, dots, hyphens and underscores, at most 64, and not cron_ in front"
        raise FieldWrong(field, f"{_shown(text)} is no name for a schedule: {what}")
    return text


def _agent_type(field: str, value: object, around: _Around) -> str:
    text = _text(field, "" if value is None else value)
    if text in _NONE:
        return "lead"
    if not _AGENT_TYPE.fullmatch(text):
        raise FieldWrong(field, f"{_shown(text)} is no agent type: write lower-case letters, digits and hyphens")
    return text


def _choice(*choices: str) -> Callable[[str, object, _Around], str]:
    def read(field: str, value: object, around: _Around) -> str:
        text = _text(field, value).lower()
        if text not in choices:
            likely = difflib.get_close_matches(text, choices, n=1)
            hint = f"; did you mean {likely[0]}?" if likely else ""
            raise FieldWrong(field, f"{_shown(text)} is none of {', '.join(choices)}{hint}")
        return text

    return read


def _flag(field: str, value: object, around: _Around) -> bool:
    if isinstance(value, bool):
        return value
    text = str(value).strip().lower()
    if text in {"true", "yes", "on"}:
        return True
    if text in {"false", "no", "off"}:
        return False
    raise FieldWrong(field, f"{_shown(value)} is neither true nor false")


def _once(field: str, value: object, around: _Around) -> bool:
    return not _flag(field, value, around)


def _span(field: str, value: object, around: _Around) -> float | None:
    return None if _is_none(value) else read_duration(field, value)


def _above_zero(field: str, value: object, around: _Around) -> float | None:
    seconds = _span(field, value, around)
    if seconds == 0:
        raise FieldWrong(field, "0 leaves no time: write a span such as 20m, or none for no limit")
    return seconds


def _whole(low: int, high: int) -> Callable[[str, object, _Around], int]:
    def read(field: str, value: object, around: _Around) -> int:
        text = str(value).strip()
        if isinstance(value, bool) or not re.fullmatch(r"[0-9]{1,9}", text) or not low <= int(text) <= high:
            raise FieldWrong(field, f"{_shown(value)} is out of range: write a whole number from {low} to {high:,}")
        return int(text)

    return read


def _runs(field: str, value: object, around: _Around) -> int | None:
    return None if _is_none(value) else _whole(1, 999_999_999)(field, value, around)


def _expires(field: str, value: object, around: _Around) -> float | None:
    if _is_none(value):
        return None
    text = _text(field, value)
    if _PART.match(text) and around.now is not None:
        return around.now + read_duration(field, text)
    try:
        moment = datetime.fromisoformat(text)
        at = (moment if moment.tzinfo else moment.replace(tzinfo=ZoneInfo(around.zone))).timestamp()
    except (ValueError, OverflowError) as wrong:
        hint = "2026-12-01T09:00, with an offset or in its time zone"
        raise FieldWrong(field, f"{_shown(value)} is no moment: write it as {hint}") from wrong
    if around.now is not None and at <= around.now:
        raise FieldWrong(field, f"{_shown(value)} is past: write a moment that is still to come")
    return at


def _mode(field: str, value: object, around: _Around) -> str:
    text = _text(field, "" if value is None else value)
    if text in _NONE:
        return ""
    mode = READ_AS.get(text, text)
    if mode not in _MODES:
        likely = difflib.get_close_matches(text, _MODES, n=1)
        hint = f"; did you mean {likely[0]}?" if likely else ""
        raise FieldWrong(field, f"{_shown(text)} is none of {', '.join(_MODES)}{hint}")
    return mode


def _rules(field: str, value: object, around: _Around) -> tuple[str, ...]:
    """Rules as a list, or as one text with commas between them, those in brackets left aside."""
    found: list[str] = []
    for rule in _items(value):
        try:
            parse_rule(rule)
        except ValueError as wrong:
            raise FieldWrong(field, str(wrong)) from wrong
        found.append(rule)
    return tuple(found)


def _items(value: object) -> Sequence[str]:
    if isinstance(value, (list, tuple)):
        items = [str(one).strip() for one in cast("Sequence[object]", value)]
    else:
        items = [] if _is_none(value) else [one.strip() for one in re.split(r",(?![^(]*\))", str(value))]
    return [one for one in items if one.lower() not in _NONE]


def _budget(field: str, value: object, around: _Around) -> Budget:
    """A mapping of kinds and limits, or `cost_usd=2, steps=9`."""
    if _is_none(value):
        return Budget()
    pairs = cast("Mapping[object, object]", value).items() if isinstance(value, Mapping) else _pairs(field, value)
    found: dict[str, float] = {}
    for name, limit in pairs:
        kind, text = str(name).strip(), str(limit).strip()
        if limit is None:
            continue
        if kind not in _KINDS:
            raise FieldWrong(field, f"{_shown(kind)}: no such kind; there are {', '.join(_KINDS)}, as in cost_usd=1.5")
        whole = _KINDS[kind]
        try:
            found[kind] = int(text) if whole else float(text)
        except ValueError:
            found[kind] = math.nan
        if isinstance(limit, bool) or not 0 <= found[kind] < math.inf:
            raise FieldWrong(field, f"{kind}: {_shown(limit)} is no {'whole ' if whole else ''}number from 0 on")
    return Budget.model_validate(found)


def _pairs(field: str, value: object) -> list[tuple[str, str]]:
    items = _items(value)
    for one in items:
        if "=" not in one:
            raise FieldWrong(field, f"{_shown(one)} is no limit: write KIND=N, as in cost_usd=1.5")
    return [(kind, limit) for kind, _, limit in (one.partition("=") for one in items)]


def _is_none(value: object) -> bool:
    return value is None or (isinstance(value, str) and value.strip().lower() in _NONE)


def _shown(value: object) -> str:
    text = str(value)
    return ascii(text if len(text) <= 60 else text[:57] + "...")


_Reader = Callable[[str, object, _Around], object]
_READERS: Mapping[str, tuple[str, _Reader]] = MappingProxyType(
    {
        "cron": ("cron", _text),
        "prompt": ("prompt", _prompt),
        "name": ("name", _name),
        "timezone": ("timezone", _text),
        "once": ("recurring", _once),
        "recurring": ("recurring", _flag),
        "durable": ("durable", _flag),
        "enabled": ("enabled", _flag),
        "misfire": ("misfire", _choice("skip", "latest", "all")),
        "misfire_cap": ("misfire_cap", _whole(1, MOST_MADE_UP)),
        "window": ("window", _span),
        "overlap": ("overlap", _choice("skip", "queue", "replace", "parallel")),
        "context": ("context", _choice("lead", "fresh", "own")),
        "agent_type": ("target", _agent_type),
        "deliver": ("deliver", _choice("turn", "step")),
        "jitter": ("jitter", _span),
        "deadline": ("deadline", _above_zero),
        "retries": ("retries", _whole(0, MOST_RETRIES)),
        "budget": ("budget", _budget),
        "fire_budget": ("fire_budget", _budget),
        "permission_mode": ("mode", _mode),
        "allow": ("allow", _rules),
        "ask": ("ask", _rules),
        "deny": ("deny", _rules),
        "expires": ("expires", _expires),
        "max_runs": ("max_runs", _runs),
    }
)
"""Field -> the name in `Schedule` (of rights: in `ScheduleRights`), and who reads it."""

FIELDS: Sequence[str] = tuple(_READERS)
"""What may be given, as it is written in front matter; options are the same words with hyphens."""

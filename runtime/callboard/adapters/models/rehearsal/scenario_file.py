"""Reader of scenario files.

Reports every mistake with file, line and field (docs/rehearsal.md describes the format).
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar, cast

from callboard.adapters.extensions.yaml import Address, YamlDocument, load_document
from callboard.adapters.models.rehearsal.api import CATALOGUE, ERROR_STATUS, STOP_REASONS, THINKING_TYPES, ModelSpec
from callboard.adapters.models.rehearsal.rates import KeyLimits
from callboard.adapters.models.rehearsal.replies import (
    DROPS,
    Json,
    SimulatedFault,
    SimulatedReply,
    web_results,
    web_search,
)
from callboard.adapters.models.rehearsal.scenario import Capture, Part, Scenario, Step, StepCondition
from callboard.adapters.models.rehearsal.strict_blocks import TOOL_NAME
from callboard.types.choices import choose
from callboard.types.errors import SettingsError

T = TypeVar("T")

LARGEST = 1_000_000_000
"""Largest number in a scenario, in milliseconds or seconds."""

TOP_FIELDS = ("name", "models", "latency_ms", "rate", "agents", "summaries", "end")
RATE_FIELDS = ("requests", "input_tokens", "output_tokens")
STEP_FIELDS = (
    "when",
    "otherwise",
    "reply",
    "stop_reason",
    "repeat",
    "fault",
    "capture",
    "latency_ms",
    "pace_ms",
    "note",
)
GUARD_FIELDS = ("contains", "not_contains", "anywhere", "result_of", "model")
MODEL_FIELDS = ("window", "max_output", "min_cache", "thinking", "sampling", "prefill", "system_messages")
FAULT_KINDS = ("status", "drop", "silence_s", "pings_s", "html", "error_event", "bad_json", "wrong_shape", "slow_s")
FAULT_FIELDS = (*FAULT_KINDS, "times", "retry_after", "error_type", "message", "code")


def load_scenario(source: Path | str, where: str = "") -> Scenario:
    """Return the scenario of a file (a `Path`) or text (a `str`). Raises `SettingsError` for the first mistake."""
    reader = _Reader(load_document(source, where))
    scenario = reader.scenario()
    if reader.problems:
        raise reader.problems[0]
    return scenario


def validate(path: Path) -> list[str]:
    """Return every mistake in a scenario file, one line each; an empty list for a valid file."""
    try:
        reader = _Reader(load_document(path))
    except SettingsError as error:
        return [str(error)]
    reader.scenario()
    return [str(problem) for problem in reader.problems]


class _Reader:
    """One pass over a document. A mistake is recorded, and reading continues with a placeholder."""

    def __init__(self, document: YamlDocument) -> None:
        self.problems: list[SettingsError] = []
        self._document = document

    def scenario(self) -> Scenario:
        top = self._mapping(self._document.data, (), TOP_FIELDS)
        default = Path(self._document.where).stem or "scenario"
        agents = self._part(top.get("agents"), ("agents",))
        if not agents:
            self._wrong("names the agents and their steps; there are none", ("agents",))
        return Scenario(
            name=self._of(top, "name", str, address=(), default=default),
            models=self._models(top.get("models")),
            latency_ms=self._number(top, "latency_ms", (), 0.0),
            rate=self._rate(top.get("rate")),
            agents=agents,
            summaries=self._part(top.get("summaries"), ("summaries",)),
            end=self._step(top["end"], ("end",)) if "end" in top else None,
        )

    def _wrong(self, problem: str, address: Address) -> None:
        self.problems.append(self._document.error(problem, address))

    def _mapping(self, value: object, address: Address, allowed: Collection[str] | None) -> Json:
        if not isinstance(value, dict):
            self._wrong(
                "is a mapping of fields" if address else "a scenario is a mapping with the field `agents`", address
            )
            return {}
        fields = cast("Json", value)
        for name in fields:
            if allowed is not None and name not in allowed:
                self._wrong(f"is not a field here: {choose(allowed)}", (*address, name))
        return fields

    def _of(self, fields: Json, name: str, kind: type[T], *, address: Address, default: T) -> T:
        value = fields.get(name, default)
        if isinstance(value, kind) and not (kind is int and isinstance(value, bool)):
            return value
        expected = "text" if kind is str else "true or false" if kind is bool else "a whole number"
        self._wrong(f"is {expected}, not {value!r}", (*address, name))
        return default

    def _number(self, fields: Json, name: str, address: Address, default: float) -> float:
        value = fields.get(name, default)
        if not isinstance(value, int | float) or isinstance(value, bool) or not value >= 0:
            self._wrong(f"is a number from 0 up, not {value!r}", (*address, name))
        elif value > LARGEST:
            self._wrong(f"is at most {LARGEST:,}, not {value!r}", (*address, name))
        else:
            return float(value)
        return default

    def _list(self, value: object) -> list[object]:
        return cast("list[object]", value) if isinstance(value, list) else [value]

    def _rate(self, value: object) -> KeyLimits:
        fields = {} if value is None else self._mapping(value, ("rate",), (*RATE_FIELDS, "refill"))
        usual = KeyLimits()
        limits = {
            name: self._of(fields, name, int, address=("rate",), default=getattr(usual, name)) for name in RATE_FIELDS
        }
        refill = fields.get("refill", usual.refill)
        if refill not in ("window", "bucket"):
            self._wrong(f"is window or bucket, not {refill!r}", ("rate", "refill"))
        return replace(usual, **limits, refill=refill)

    def _models(self, value: object) -> Mapping[str, ModelSpec]:
        if value is None:
            return dict(CATALOGUE)
        models: dict[str, ModelSpec] = {}
        for name, fields in self._mapping(value, ("models",), None).items():
            models[name] = self._model(name, fields or {}, ("models", name))
        if not models:
            self._wrong("names at least one model, or is left out", ("models",))
        return models or dict(CATALOGUE)

    def _model(self, name: str, value: object, address: Address) -> ModelSpec:
        fields = self._mapping(value, address, MODEL_FIELDS)
        base = CATALOGUE.get(name, ModelSpec(name))
        kinds = fields.get("thinking", sorted(base.thinking))
        thinking = [kind for kind in self._list(kinds) if isinstance(kind, str) and kind in THINKING_TYPES]
        if len(thinking) != len(self._list(kinds)):
            self._wrong(f"is a list of: {', '.join(sorted(THINKING_TYPES))}", (*address, "thinking"))
        return ModelSpec(
            name,
            window=self._of(fields, "window", int, address=address, default=base.window),
            max_output=self._of(fields, "max_output", int, address=address, default=base.max_output),
            min_cache=self._of(fields, "min_cache", int, address=address, default=base.min_cache),
            thinking=frozenset(thinking),
            sampling=self._of(fields, "sampling", bool, address=address, default=base.sampling),
            prefill=self._of(fields, "prefill", bool, address=address, default=base.prefill),
            system_messages=self._of(fields, "system_messages", bool, address=address, default=base.system_messages),
        )

    def _part(self, value: object, address: Address) -> Part:
        if value is None:
            return ()
        part: list[tuple[str, tuple[Step, ...]]] = []
        for agent, steps in self._mapping(value, address, None).items():
            agent_address = (*address, agent)
            if not isinstance(steps, list) or not steps:
                self._wrong("is a list of steps", agent_address)
                continue
            listed = cast("list[object]", steps)
            part.append((agent, tuple(self._step(step, (*agent_address, n)) for n, step in enumerate(listed))))
        return tuple(part)

    def _step(self, value: object, address: Address) -> Step:
        fields = self._mapping(value, address, STEP_FIELDS)
        otherwise = self._of(fields, "otherwise", bool, address=address, default=False)
        if otherwise and "when" in fields:
            self._wrong("an `otherwise` step has no guard", (*address, "when"))
        if "reply" not in fields and "fault" not in fields and "stop_reason" not in fields:
            self._wrong("says what is answered; it is missing", (*address, "reply"))
        repeat = fields.get("repeat", "forever" if otherwise or address[0] == "end" else 1)
        if repeat != "forever" and (not isinstance(repeat, int) or isinstance(repeat, bool) or repeat < 1):
            self._wrong(f"is a whole number from 1 up, or forever, not {repeat!r}", (*address, "repeat"))
            repeat = 1
        return Step(
            reply=self._reply(fields, address),
            guard=self._guard(fields["when"], (*address, "when")) if "when" in fields else StepCondition(),
            captures=self._captures(fields.get("capture"), (*address, "capture")),
            repeat=None if repeat == "forever" else cast("int", repeat),
            otherwise=otherwise,
            place=self._document.place(address),
        )

    def _reply(self, fields: Json, address: Address) -> SimulatedReply:
        blocks = self._list(fields.get("reply", []))
        stop = fields.get("stop_reason")
        if stop is not None and stop not in STOP_REASONS:
            self._wrong(f"is one of: {', '.join(sorted(STOP_REASONS))}", (*address, "stop_reason"))
        reply_address = (*address, "reply")
        nested = isinstance(fields.get("reply"), list)
        read = [
            part
            for n, block in enumerate(blocks)
            for part in self._blocks(block, (*reply_address, n) if nested else reply_address)
        ]
        calls = any(block["type"] == "tool_use" for block in read)
        if stop in ("end_turn", "tool_use") and calls != (stop == "tool_use"):
            self._wrong("the API says `tool_use` if, and only if, the reply holds calls", (*address, "stop_reason"))
        faults = self._list(fields["fault"]) if "fault" in fields else []
        return SimulatedReply(
            tuple(read),
            cast("str | None", stop),
            tuple(self._fault(fault, (*address, "fault")) for fault in faults),
            self._number(fields, "latency_ms", address, 0.0) if "latency_ms" in fields else None,
            self._number(fields, "pace_ms", address, 0.0),
        )

    def _blocks(self, value: object, address: Address) -> tuple[Json, ...]:
        """Return the blocks of one entry: two for a search by the service and its results."""
        entry: Json = cast("Json", value) if isinstance(value, dict) else {}
        if "web_search_results" in entry:
            return (web_results(self._results(entry["web_search_results"], (*address, "web_search_results"))),)
        if "web_search" not in entry:
            return (self._block(cast("object", value), address),)
        search_address = (*address, "web_search")
        fields = self._mapping(entry["web_search"], search_address, ("query", "results"))
        query = self._of(fields, "query", str, address=search_address, default="?")
        found = fields.get("results")
        return web_search(query, None if found is None else self._results(found, (*search_address, "results")))

    def _results(self, value: object, address: Address) -> list[Json]:
        results: list[Json] = []
        for number, item in enumerate(self._list(value)):
            place = (*address, number)
            fields = self._mapping(item, place, ("title", "url", "page_age"))
            title = self._of(fields, "title", str, address=place, default="?")
            results.append({**fields, "title": title, "url": self._of(fields, "url", str, address=place, default="?")})
        return results

    def _block(self, value: object, address: Address) -> Json:
        if isinstance(value, str):
            value = {"text": value}
        fields = self._mapping(value, address, ("text", "thinking", "redacted_thinking", "tool_use"))
        if len(fields) != 1:
            self._wrong("is one block: text, thinking, redacted_thinking or tool_use", address)
            return {"type": "text", "text": "?"}
        kind, content = next(iter(fields.items()))
        if kind == "tool_use":
            return self._call(content, (*address, kind))
        if not isinstance(content, str) or not content.strip():
            self._wrong("is text that is not empty", (*address, kind))
            content = "?"
        return {"type": kind, {"text": "text", "thinking": "thinking"}.get(kind, "data"): content}

    def _call(self, value: object, address: Address) -> Json:
        fields = self._mapping(value, address, ("name", "input", "raw_input", "unoffered"))
        name = self._of(fields, "name", str, address=address, default="?")
        if not TOOL_NAME.fullmatch(name):
            self._wrong("names the tool: 1 to 128 letters, digits, `_` or `-`", (*address, "name"))
        call_input = fields.get("input")
        block: Json = {"type": "tool_use", "name": name, "input": {}}
        block["input"] = {} if call_input is None else self._mapping(call_input, (*address, "input"), None)
        if "raw_input" in fields:
            block["raw_input"] = self._of(fields, "raw_input", str, address=address, default="")
        if self._of(fields, "unoffered", bool, address=address, default=False):
            block["unoffered"] = True
        return block

    def _guard(self, value: object, address: Address) -> StepCondition:
        fields = self._mapping(value, address, GUARD_FIELDS)
        tools = self._list(fields["result_of"]) if "result_of" in fields else []
        if not all(isinstance(tool, str) for tool in tools):
            self._wrong("is a tool's name, or a list of them", (*address, "result_of"))
        return StepCondition(
            self._patterns(fields, "contains", address),
            self._patterns(fields, "not_contains", address),
            self._patterns(fields, "anywhere", address),
            tuple(tool for tool in tools if isinstance(tool, str)),
            self._of(fields, "model", str, address=address, default="") or None,
        )

    def _patterns(self, fields: Json, name: str, address: Address) -> tuple[re.Pattern[str], ...]:
        values = self._list(fields[name]) if name in fields else []
        return tuple(self._pattern(value, (*address, name)) for value in values)

    def _pattern(self, value: object, address: Address) -> re.Pattern[str]:
        try:
            return re.compile(str(value), re.MULTILINE)
        except re.error as error:
            self._wrong(f"is not a regular expression: {error}", address)
            return re.compile("(?!)")

    def _captures(self, value: object, address: Address) -> tuple[Capture, ...]:
        if value is None:
            return ()
        return tuple(
            self._capture(name, spec, (*address, name)) for name, spec in self._mapping(value, address, None).items()
        )

    def _capture(self, name: str, value: object, address: Address) -> Capture:
        if not re.fullmatch(r"[A-Za-z_]\w*", name):
            self._wrong("is a name of letters, digits and `_`", address)
        fields: Json = {"find": value} if isinstance(value, str) else self._mapping(value, address, ("find", "nth"))
        pattern = self._pattern(self._of(fields, "find", str, address=address, default=""), address)
        return Capture(name, pattern, max(1, self._of(fields, "nth", int, address=address, default=1)))

    def _fault(self, value: object, address: Address) -> SimulatedFault:
        fields = self._mapping(value, address, FAULT_FIELDS)
        kinds = [kind for kind in FAULT_KINDS if kind in fields]
        if len(kinds) != 1:
            self._wrong(f"sets exactly one of: {', '.join(FAULT_KINDS)}", address)
            return SimulatedFault(status=529)
        return self._fault_of(kinds[0], fields, address)

    def _fault_of(self, kind: str, fields: Json, address: Address) -> SimulatedFault:
        value = fields[kind]
        if not _fits(kind, value):
            choices = {"drop": f": {', '.join(DROPS)}", "error_event": f": {', '.join(ERROR_STATUS)}"}.get(kind, "")
            self._wrong(f"cannot be {value!r}{choices}", (*address, kind))
            return SimulatedFault(status=529)
        wait = self._number(fields, "retry_after", address, 0.0) if "retry_after" in fields else None
        shape = SimulatedFault(
            times=max(1, self._of(fields, "times", int, address=address, default=1)),
            retry_after=wait,
            error_type=self._of(fields, "error_type", str, address=address, default="") or None,
            message=self._of(fields, "message", str, address=address, default=""),
            code=self._of(fields, "code", str, address=address, default="") or None,
        )
        return replace(shape, **cast("dict[str, Any]", {kind: value}))


def _fits(kind: str, value: object) -> bool:
    """Return True if this value is possible for a fault of this kind."""
    choices: Mapping[str, Collection[object]] = {
        "status": range(400, 600),
        "html": range(200, 600),
        "drop": DROPS,
        "error_event": tuple(ERROR_STATUS),
        "bad_json": (True,),
        "wrong_shape": (True,),
    }
    if kind in choices:
        return isinstance(value, str | int) and value in choices[kind]
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= 86_400

"""Choice of the step for each call of an agent. Remembers the reply to every call, even if the process is killed.

One line of JSON is appended to the state file before a reply is sent. A player that starts with that file continues
where the killed one stopped, and a repeated call gets the same reply. An incomplete last line is a reply that was never
sent. If a scenario has no reply, the client gets a 400 with that reason, and does not hang.
"""

from __future__ import annotations

import errno
import inspect
import json
import os
import re
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import asdict, field, replace
from pathlib import Path
from typing import Any, cast

from callboard.adapters.models.rehearsal.api import ApiError, invalid
from callboard.adapters.models.rehearsal.replies import (
    Json,
    SimulatedFault,
    SimulatedReply,
    SimulatedRequest,
    fit_reply,
    say,
)
from callboard.adapters.models.rehearsal.scenario import Scenario, Step
from callboard.adapters.models.rehearsal.strict import calls_digest, thinking_marks
from callboard.types.errors import SettingsError
from callboard.types.late_pattern import late_pattern
from callboard.types.lazy_dataclass import dataclass

_PLACEHOLDER = late_pattern(r"\$(\$?)\{(\w+)\}")
_SHOWN = 300
"""Most characters of the newest message that an error quotes."""

AgentKey = tuple[str, str]
"""Session and agent."""


@dataclass(slots=True)
class _Call:
    """One call of one agent: its step, and the number of requests for it."""

    step: int | None
    reply: SimulatedReply | None
    attempts: int = 0


@dataclass(slots=True)
class _AgentMemory:
    calls: dict[tuple[str, str], _Call] = field(default_factory=dict[tuple[str, str], _Call])
    """Calls by purpose and ordinal."""
    used: dict[tuple[str, int], int] = field(default_factory=lambda: defaultdict[tuple[str, int], int](int))
    """Number of times that a step (by purpose and position) was given."""
    paused: bool = False
    issued: dict[tuple[str, str], frozenset[tuple[str, ...]]] = field(
        default_factory=dict[tuple[str, str], frozenset[tuple[str, ...]]]
    )
    """Thinking sent before calls, by model and digest of the calls."""


class Player:
    """Player of one scenario for any number of sessions. Not thread-safe: one event loop owns it."""

    def __init__(self, scenario: Scenario, state: Path | None = None) -> None:
        self.scenario = scenario
        self._agents: dict[AgentKey, _AgentMemory] = defaultdict(_AgentMemory)
        self._captured: dict[str, dict[str, str]] = defaultdict(dict)
        self._state = state
        if state is not None and state.exists():
            self._recall(state)

    def is_paused(self, session: str, agent: str) -> bool:
        """Return True if the agent's last reply stopped with `pause_turn`."""
        return self._agents[session, agent].paused

    def issued_thinking(self, session: str, agent: str, model: str) -> Mapping[str, frozenset[tuple[str, ...]]]:
        """Return the thinking that this model sent the agent before calls, by the calls' digest."""
        memory = self._agents[session, agent].issued
        return {digest: marks for (of, digest), marks in memory.items() if of == model}

    def attempt(self, session: str, agent: str, purpose: str, ordinal: str) -> int:
        """Return the number of the current attempt at this call, from 1."""
        call = self._agents[session, agent].calls.get((purpose, ordinal))
        return 1 if call is None else call.attempts + 1

    async def play(self, request: SimulatedRequest) -> SimulatedReply | ApiError:
        """Return the complete reply to a call, the same for each of its attempts, or the error if no step fits."""
        memory = self._agents[request.session, request.agent]
        key = (request.purpose, request.ordinal)
        call = memory.calls.get(key)
        if self.scenario.answer is not None:
            answer = self.scenario.answer(request)
            answered = await answer if inspect.isawaitable(answer) else answer
            reply = answered if isinstance(answered, ApiError) else fit_reply(answered, request)
            call = call or memory.calls.setdefault(key, _Call(None, None))
            call.attempts += 1
            return (self._note(request, call, reply) or reply) if isinstance(reply, SimulatedReply) else reply
        if call is None:
            chosen = self._choose(request)
            if isinstance(chosen, ApiError):
                return chosen
            call = memory.calls[key] = chosen
            if call.step is not None:
                memory.used[request.purpose, call.step] += 1
        call.attempts += 1
        reply = fit_reply(cast("SimulatedReply", call.reply), request)
        return self._note(request, call, reply) or reply

    def fault(self, request: SimulatedRequest, reply: SimulatedReply) -> SimulatedFault | None:
        """Return the scenario's fault for this attempt, or None."""
        before = 0
        for fault in reply.faults:
            before += fault.times
            if request.attempt <= before:
                return fault
        return None

    def _choose(self, request: SimulatedRequest) -> _Call | ApiError:
        steps = self.scenario.steps(request)
        if steps is None and request.purpose == "summary":
            return _Call(None, _made_up_summary(request))
        position = self._fitting(request, steps or ())
        step = self.scenario.end if position is None else (steps or ())[position]
        if step is None:
            return self._nothing_left(request, steps)
        captured = self._capture(request, step)
        if captured is not None:
            return captured
        reply = self._filled(step, request)
        return reply if isinstance(reply, ApiError) else _Call(position, reply)

    def _fitting(self, request: SimulatedRequest, steps: tuple[Step, ...]) -> int | None:
        used = self._agents[request.session, request.agent].used
        otherwise = None
        for position, step in enumerate(steps):
            if step.repeat is not None and used.get((request.purpose, position), 0) >= step.repeat:
                continue
            if step.otherwise:
                otherwise = position if otherwise is None else otherwise
            elif step.guard.fits(request):
                return position
        return otherwise

    def _nothing_left(self, request: SimulatedRequest, steps: tuple[Step, ...] | None) -> ApiError:
        newest = request.newest_said
        excerpt = newest if len(newest) <= _SHOWN else newest[:_SHOWN] + " ..."
        reason = (
            "no agent of that name, glob or role is in it" if steps is None else "none of its steps fits or is left"
        )
        return invalid(
            f"rehearsal: the scenario {self.scenario.name!r} has no step for agent {request.agent!r}, "
            f"call {request.ordinal} ({reason}); the newest message was: {excerpt}"
        )

    def _capture(self, request: SimulatedRequest, step: Step) -> ApiError | None:
        values = self._captured[request.session]
        for capture in step.captures:
            value = capture.value(request)
            if value is None:
                return invalid(
                    f"rehearsal: {step.place} captures {capture.name!r} and found no match number {capture.nth} of "
                    f"{capture.pattern.pattern!r} in the newest message: {request.newest_text[:_SHOWN]}"
                )
            values[capture.name] = value
        return None

    def _filled(self, step: Step, request: SimulatedRequest) -> SimulatedReply | ApiError:
        values = {**self._captured[request.session], "agent": request.agent, "session": request.session}
        missing: set[str] = set()
        blocks = tuple(cast("Json", _fill(dict(block), values, missing)) for block in step.reply.blocks)
        if missing:
            names = ", ".join(sorted(missing))
            return invalid(f"rehearsal: {step.place} uses {names}, which no step of this session captured")
        for block in blocks:
            if (
                block["type"] in ("tool_use", "server_tool_use")
                and not block.pop("unoffered", False)
                and block["name"] not in request.tools
            ):
                offered = ", ".join(sorted(request.tools)) or "none"
                problem = f"calls {block['name']!r}, a tool that the request of {request.agent!r} does not offer"
                return invalid(f"rehearsal: {step.place} {problem} (it offers: {offered})")
        return replace(step.reply, blocks=blocks)

    def _note(self, request: SimulatedRequest, call: _Call, reply: SimulatedReply) -> ApiError | None:
        """Record the reply, also in the state file. Return an error if that fails: the reply must not be sent then."""
        self._keep(request.session, request.agent, request.model, reply)
        if self._state is None:
            return None
        line = {
            "session": request.session,
            "agent": request.agent,
            "purpose": request.purpose,
            "ordinal": request.ordinal,
            "attempts": call.attempts,
            "step": call.step,
            "model": request.model,
            "captured": self._captured[request.session],
            "reply": None if call.reply is None else _as_json(call.reply),
            "sent": {"blocks": [dict(block) for block in reply.blocks], "stop_reason": reply.stop_reason},
        }
        try:
            _append(self._state, (json.dumps(line) + "\n").encode())
        except OSError as failed:
            reason = failed.strerror or str(failed)
            return invalid(f"rehearsal: {self._state} cannot be written ({reason}): make room, then resume")
        return None

    def _keep(self, session: str, agent: str, model: str, reply: SimulatedReply) -> None:
        memory = self._agents[session, agent]
        memory.paused = reply.stop_reason == "pause_turn"
        blocks = [dict(block) for block in reply.blocks]
        digest = calls_digest(blocks)
        if digest and (thinking_marks(blocks) or (model, digest) in memory.issued):
            marks = memory.issued.get((model, digest), frozenset())
            memory.issued[model, digest] = marks | {thinking_marks(blocks)}

    def _recall(self, state: Path) -> None:
        """Read the replies of a state file. Raises `SettingsError` with the line that is none, and `OSError`."""
        with state.open("rb+") as file:
            whole = 0
            for number, raw in enumerate(file, 1):
                if not raw.endswith(b"\n"):
                    break
                whole += len(raw)
                try:
                    self._recall_line(json.loads(raw))
                except (ValueError, LookupError, TypeError, AttributeError) as error:
                    text = "is not a record of a reply: name another file, or remove it to start again"
                    raise SettingsError(text, f"{state}:{number}") from error
            file.truncate(whole)

    def _recall_line(self, line: Json) -> None:
        session = cast("str", line["session"])
        agent = cast("str", line["agent"])
        purpose = cast("str", line["purpose"])
        ordinal = cast("str", line["ordinal"])
        memory = self._agents[session, agent]
        step = cast("int | None", line["step"])
        if (purpose, ordinal) not in memory.calls and step is not None:
            memory.used[purpose, step] += 1
        reply = cast("Json | None", line["reply"])
        memory.calls[purpose, ordinal] = _Call(
            step, None if reply is None else _from_json(reply), cast("int", line["attempts"])
        )
        self._captured[session].update(cast("dict[str, str]", line["captured"]))
        sent = cast("Json", line["sent"])
        blocks = tuple(cast("list[Json]", sent["blocks"]))
        self._keep(session, agent, cast("str", line["model"]), SimulatedReply(blocks, cast("str", sent["stop_reason"])))


def _append(file: Path, line: bytes) -> None:
    """Append the whole line or nothing. Raises `OSError`."""
    descriptor = os.open(file, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        before = os.fstat(descriptor).st_size
        if os.write(descriptor, line) < len(line):
            os.ftruncate(descriptor, before)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    finally:
        os.close(descriptor)


def _fill(value: object, values: Mapping[str, str], missing: set[str]) -> object:
    """Return the value with every `${name}` in its strings replaced; `$${` is an escaped `${`."""
    if isinstance(value, str):
        return _PLACEHOLDER.sub(lambda match: _filling(match, values, missing), value)
    if isinstance(value, dict):
        return {name: _fill(inner, values, missing) for name, inner in cast("Json", value).items()}
    if isinstance(value, list):
        return [_fill(inner, values, missing) for inner in cast("list[object]", value)]
    return value


def _filling(match: re.Match[str], values: Mapping[str, str], missing: set[str]) -> str:
    if match[1]:
        return f"${{{match[2]}}}"
    if match[2] not in values:
        missing.add(match[2])
    return values.get(match[2], "")


def _made_up_summary(request: SimulatedRequest) -> SimulatedReply:
    """Return a summary that depends only on the request: its length, and the user's last text."""
    people = [message for message in request.messages if message["role"] == "user"]
    last_text = ""
    for message in reversed(people):
        content = message["content"]
        blocks = cast("list[Json]", content) if isinstance(content, list) else [{"type": "text", "text": content}]
        texts = [cast("str", block["text"]) for block in blocks if block["type"] == "text"]
        if texts:
            last_text = texts[-1].strip()
            break
    quoted = last_text if len(last_text) <= _SHOWN else last_text[:_SHOWN] + " ..."
    return say(f"Summary of {len(request.messages)} messages. The last words were: {quoted}")


def _as_json(reply: SimulatedReply) -> Json:
    return asdict(replace(reply, blocks=tuple(dict(block) for block in reply.blocks)))


def _from_json(data: Json) -> SimulatedReply:
    fields = dict(data)
    fields["blocks"] = tuple(cast("list[Json]", fields["blocks"]))
    fields["faults"] = tuple(SimulatedFault(**fault) for fault in cast("list[dict[str, Any]]", fields["faults"]))
    return SimulatedReply(**cast("dict[str, Any]", fields))

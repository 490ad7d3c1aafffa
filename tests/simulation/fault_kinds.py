"""The faults of the matrix: how each is played, what must follow, and what a person is told where it stays."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Literal

from tests.simulation import fault_talk as talk

TOO_LONG = "prompt is too long: 213000 tokens > 200000 maximum"
Meaning = Literal["transient", "outage", "final", "key", "too_long", "parked", "again", "harmless"]
"""What must follow. `transient`: a retry; `outage`: everybody's. `final`: the end of the turn; `key`: everybody's.
`too_long`: a compaction. `parked`: a long wait. `again`: the model is asked for another reply. `harmless`: nothing."""


@dataclass(frozen=True)
class Kind:
    """One fault: how it is played, what it means, and the words by which a person must know it when it stays."""

    name: str
    play: talk.Play
    meaning: Meaning = "transient"
    words: tuple[str, ...] = ()
    code: int = 6
    """The exit code of a run whose lead meets it for ever: 6, the service is unavailable."""
    wait: float = 0.0
    """Seconds that must pass before the same call comes again: what was asked for, else the shortest back-off."""


def _status(
    name: str, status: int, kind: str, message: str = "", *headers: str, meaning: Meaning = "transient", code: int = 6,
    words: tuple[str, ...] = (),
) -> Kind:  # fmt: skip
    said = message or f"rehearsed {kind}"
    play = partial(talk.error, status=status, kind=kind, message=said, headers=headers)
    asked = [float(one.partition(": ")[2]) for one in headers]
    return Kind(name, play, meaning, words or (kind, str(status), said), code, max([0.0, *asked]))


_FINAL: Mapping[str, tuple[int, tuple[str, ...]]] = {
    "authentication_error": (3, ("ANTHROPIC_API_KEY",)),
    "permission_error": (3, ("ANTHROPIC_API_KEY",)),
    "billing_error": (3, ("billed",)),
    "not_found_error": (3, ("--model",)),
    "invalid_request_error": (1, ("refused the request as invalid",)),
}
"""The API's errors that no retry mends: the exit code, and what a person is told to do."""
_KEY = ("authentication_error", "permission_error", "billing_error")
"""Those that are the key's own: no other call is made with it."""
_FULL = ("the conversation ",)


def _final(status: int, kind: str) -> Kind:
    code, words = _FINAL[kind]
    meaning: Meaning = "key" if kind in _KEY else "final"
    return _status(str(status), status, kind, meaning=meaning, code=code, words=(*words, f"rehearsed {kind}"))


def _streamed(kind: str) -> Kind:
    name, play, words = f"event:{kind}", partial(talk.error_event, kind=kind), (f"in the middle: {kind}",)
    if kind in _FINAL:
        return Kind(name, play, "key" if kind in _KEY else "final", (*_FINAL[kind][1], *words), _FINAL[kind][0])
    if kind == "request_too_large":
        return Kind(name, play, "too_long", _FULL, 5)
    return Kind(name, play, "transient", words)


_LOST, _NOT_JSON = ("connection:",), ("not valid JSON",)
_STATUSES = (
    _status("429", 429, "rate_limit_error"),
    _status("429-after", 429, "rate_limit_error", "", "retry-after: 7"),
    _status("429-parked", 429, "rate_limit_error", "", "retry-after: 600", meaning="parked"),
    _status("429-spend", 429, "rate_limit_error", "You have reached your specified API usage limits.", meaning="key",
            code=5, words=("the spend limit of this key is reached",)),
    _status("529", 529, "overloaded_error"),
    _status("500", 500, "api_error"),
    Kind("502", partial(talk.page, status=502), words=("HTTP 502", "web page")),
    _status("503", 503, "api_error"),
    _status("504", 504, "timeout_error"),
    _status("408", 408, "timeout_error"),
    _status("413", 413, "request_too_large", meaning="too_long", code=5, words=_FULL),
    _status("too-long", 400, "invalid_request_error", TOO_LONG, meaning="too_long", code=5, words=_FULL),
    _final(401, "authentication_error"),
    _final(402, "billing_error"),
    _final(403, "permission_error"),
    _final(404, "not_found_error"),
    _final(400, "invalid_request_error"),
)  # fmt: skip
_CONNECTIONS = (
    Kind("refused", talk.reset_at_once, "outage", (*_LOST, "cannot connect to")),
    Kind("reset-at-once", talk.reset_at_once, words=_LOST),
    Kind("closed-at-once", talk.closed_at_once, words=_LOST),
    Kind("reset-after-head", talk.reset_after_head, words=_LOST),
    Kind("reset-unread", talk.reset_unread, words=_LOST),
    Kind("reset-unread-rest", partial(talk.reset_unread, read=2), words=_LOST),
    Kind("short-error", talk.short_error),
    Kind("ended-in-event", talk.ended_in, words=_LOST),
)
_SILENCES = (
    Kind("silent-at-once", talk.silent_at_once, words=("no reply within 120 s",)),
    Kind("silent-after-head", talk.silent_after_head, words=("no reply within 120 s",)),
    Kind("silent-in-stream", talk.silent_in, words=("no content for 60 s",)),
    Kind("pings-at-once", partial(talk.pings, before=0), words=("no reply within 120 s",)),
    Kind("pings-in-stream", partial(talk.pings, before=4), words=("no content for 60 s",)),
    Kind("trickle", talk.trickle, words=("longer than 900 s",)),
    Kind("slow", partial(talk.slow, first=110.0, between=55.0), "harmless"),
)
_STREAMS = (
    Kind("wrong-shape", talk.wrong_shape, words=("not an event stream",)),
    Kind("page-for-stream", talk.page_for_stream, words=("not an event stream",)),
    Kind("bad-json", partial(talk.bad_event, data=b'event: x\ndata: {"type": "content_block_del\n\n'), words=_NOT_JSON),
    Kind("no-object", partial(talk.bad_event, data=b"data: [1]\n\n"), words=("not a JSON object",)),
    Kind("out-of-order", partial(talk.bad_event, data=b'data: {"type": "content_block_stop", "index": 77}\n\n'),
         words=("outside its block",)),
    Kind("binary", partial(talk.bad_event, data=b"data: \xff\xfe\x00{\n\n"), words=_NOT_JSON),
    Kind("bad-chunk", talk.bad_chunk),
    Kind("late-error", partial(talk.error_event, kind="api_error", at_end=True)),
)  # fmt: skip
_EVENTS = tuple(
    _streamed(kind)
    for kind in ("overloaded_error", "api_error", "rate_limit_error", "timeout_error", "request_too_large", *_FINAL)
)
_REPLIES = (
    Kind("cut-input", talk.cut_input, "again"),
    Kind("max-tokens", partial(talk.stopped, reason="max_tokens"), words=(": ask for ",), code=5),
    Kind("window-exceeded", partial(talk.stopped, reason="model_context_window_exceeded"), "too_long", _FULL, 5),
)
KINDS: Mapping[str, Kind] = {
    kind.name: kind for kind in (*_STATUSES, *_CONNECTIONS, *_SILENCES, *_STREAMS, *_EVENTS, *_REPLIES)
}


def kind_of(name: str) -> Kind:
    """The fault of that name. `reset@7`: the connection is lost in event 7; `ended@7`: the stream ends before it."""
    way, _, number = name.partition("@")
    if number:
        play: Mapping[str, Callable[..., Awaitable[None]]] = {"reset": talk.reset_in, "ended": talk.ended_before}
        return Kind(name, partial(play[way], number=int(number)), words=_LOST)
    return KINDS[name]

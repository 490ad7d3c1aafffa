"""The hook registry: who is asked at which moment, in which order, and what their answers come to.

One registry guards every agent of a session, whatever its kind. Handlers that are no callables start together, on what
the model asked for; then the callables speak one by one, in the order of their sources, each on what was rewritten so
far. All of them run, and `core/hooks/rules.py` merges. A hook that fails never raises into the loop: it is a `Heard`.
"""

from __future__ import annotations

import copy
import inspect
import threading
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, cast

import anyio
import anyio.to_thread

from callboard.core.hooks.rules import (
    Heard,
    Matcher,
    Misfit,
    capped,
    moment_verdict,
    permission_verdict,
    post_verdict,
    pre_verdict,
    prompt_verdict,
    read_matcher,
    rewritten,
    stop_verdict,
    understood,
)
from callboard.core.hooks.subjects import MATCHED, subjects_of
from callboard.core.hooks.wire import event_json, in_our_fields, told_to_handlers
from callboard.engine.hooks.background import Background
from callboard.ports.hooks import HookHandler, Late, Terms
from callboard.words.errors import UsageError
from callboard.words.hooks import (
    FITTING,
    MARKS,
    SOURCES,
    HandlerResult,
    HookEvent,
    HookMark,
    HookSource,
    MomentVerdict,
    PermissionRequest,
    PostToolUse,
    PostVerdict,
    PreToolUse,
    PreVerdict,
    PromptVerdict,
    Stop,
    StopVerdict,
    SubagentStop,
    UserPromptSubmit,
)

THREADS = 40
"""Callables of all agents that run at once; the others wait, and their time has not begun."""

Hook = Callable[[Any], object] | HookHandler


@dataclass(frozen=True, slots=True, eq=False)
class Registration:
    """One registered hook. `remove` takes it away; what it has been asked already, it still answers."""

    registry: HookRegistry
    event: str
    handler: Hook
    matcher: Matcher
    source: HookSource
    terms: Terms

    def remove(self) -> None:
        """Take the hook away. From any thread, and more than once."""
        self.registry.discard(self)

    @property
    def by(self) -> str:
        """How people and the model know it: `hook NAME (SOURCE)`."""
        name = getattr(self.handler, "__name__", None) or getattr(self.handler, "name", None)
        return f"hook {name or type(self.handler).__name__} ({self.source})"


class HookRegistry:
    """All hooks of a session. `add`, `include` and `remove` may be called from any thread."""

    def __init__(self, timeout: float = 60, grace: float = 5) -> None:
        """Seconds: what one hook has for one answer, if its file says nothing else; and how much longer a handler
        is waited for that should keep its time itself."""
        self._timeout = timeout
        self._grace = grace
        self._threads = anyio.CapacityLimiter(THREADS)
        self._lock = threading.Lock()
        """Held for a copy-and-swap: who reads sees one whole tuple, and never waits."""
        self._hooks: dict[str, tuple[Registration, ...]] = dict.fromkeys(FITTING, ())
        self._background = Background()

    def add(
        self,
        event: str,
        handler: Hook,
        matcher: str = "",
        *,
        source: HookSource = "person",
        fail_open: bool = False,
        terms: Terms | None = None,
    ) -> Registration:
        """Register a callable or a handler. `terms` say more than `fail_open` alone.

        Raises `UsageError` for an unknown event, source or matcher.
        """
        if event not in FITTING:
            raise UsageError(f"there is no hook event {event!r}: there are {', '.join(sorted(FITTING))}")
        if source not in SOURCES:
            raise UsageError(f"there is no source of hooks {source!r}: there are {', '.join(SOURCES)}")
        if matcher and event not in MATCHED:
            raise UsageError(f"{event} has no matcher: leave out {matcher!r}")
        if not callable(handler) and not hasattr(cast("object", handler), "run"):
            raise UsageError(f"{handler!r} is neither a callable nor a hook handler")
        try:
            read = read_matcher(matcher)
        except Misfit as error:
            raise UsageError(str(error)) from error
        registration = Registration(self, event, handler, read, source, terms or Terms(fail_open))
        with self._lock:
            together = (*self._hooks[event], registration)
            self._hooks[event] = tuple(sorted(together, key=lambda one: SOURCES.index(one.source)))
        return registration

    def include(self, function: Callable[[Any], object], *, source: HookSource = "person") -> list[Registration]:
        """Register a function for each of its `@hook` marks. Raises `UsageError` when it has none."""
        marks: tuple[HookMark, ...] = getattr(function, MARKS, ())
        if not marks:
            raise UsageError(f"{function!r} has no @hook mark that says for which event it is")
        return [self.add(mark.event, function, mark.matcher, source=source) for mark in marks]

    def longest(self) -> float:
        """Seconds that the hooks of one moment may take together: callables are asked one by one, handlers at once."""
        moments = (self._longest(registrations) for registrations in self._hooks.values())
        return max(moments, default=self._timeout)

    def _longest(self, registrations: tuple[Registration, ...]) -> float:
        registrations = tuple(one for one in registrations if not one.terms.background)
        handlers = [one.handler for one in registrations if hasattr(cast("object", one.handler), "run")]
        times = [cast("HookHandler", one).timeout for one in handlers]
        together = max((self._timeout if time is None else time for time in times), default=0.0)
        return self._timeout * (len(registrations) - len(handlers)) + together + self._grace

    def given(self, event: str) -> float:
        """The longest time, in seconds, that a file gives a handler of that event; 0 where none does."""
        handlers = [one.handler for one in self._hooks[event] if hasattr(cast("object", one.handler), "run")]
        return max((cast("HookHandler", one).timeout or 0.0 for one in handlers), default=0.0)

    def discard(self, registration: Registration) -> None:
        """Take a hook away; nothing happens when it is gone already."""
        with self._lock:
            left = tuple(one for one in self._hooks[registration.event] if one is not registration)
            self._hooks[registration.event] = left

    def has(self, event: str) -> bool:
        """Whether any hook waits for that event."""
        return bool(self._hooks.get(event))

    async def tend(self, tell: Callable[[Late], Awaitable[None]]) -> None:
        """Let hooks run in the background until cancelled, and `tell` what they say; nothing of them outlives this."""
        await self._background.tend(tell)

    async def pre_tool_use(self, event: PreToolUse) -> PreVerdict:
        """What the hooks say about a call. Raises nothing."""
        heard, after = await self._ask_all(event)
        return pre_verdict(heard, None if after is event else cast("PreToolUse", after).call.input)

    async def permission_request(self, event: PermissionRequest) -> PreVerdict:
        """What the hooks answer in place of the person who would be asked. Raises nothing."""
        heard, after = await self._ask_all(event)
        return permission_verdict(heard, None if after is event else cast("PermissionRequest", after).call.input)

    async def post_tool_use(self, event: PostToolUse) -> PostVerdict:
        """What the hooks make of a result. Raises nothing."""
        heard, after = await self._ask_all(event)
        return post_verdict(heard, None if after is event else cast("PostToolUse", after).result)

    async def user_prompt_submit(self, event: UserPromptSubmit) -> PromptVerdict:
        """What the hooks say about a prompt. Raises nothing."""
        heard, _ = await self._ask_all(event)
        return prompt_verdict(heard)

    async def stop(self, event: Stop | SubagentStop) -> StopVerdict:
        """What the hooks say about the end of a turn. Raises nothing."""
        heard, _ = await self._ask_all(event)
        return stop_verdict(heard)

    async def fire(self, event: HookEvent) -> MomentVerdict:
        """What the hooks say about any other moment. Raises nothing."""
        heard, _ = await self._ask_all(event)
        return moment_verdict(type(event).__name__, heard)

    async def _ask_all(self, event: HookEvent) -> tuple[list[Heard], HookEvent]:
        """Ask every hook that the event is about: what each came to, in their order, and the event as rewritten."""
        hooks = self._about(event)
        heard = await self._ask_handlers([one for one in hooks if not callable(one.handler)], event)
        for registration in heard:
            event = rewritten(event, heard[registration])
        for registration in hooks:
            if callable(registration.handler):
                heard[registration] = await self._ask_callable(registration, event)
                event = rewritten(event, heard[registration])
        return [heard[registration] for registration in hooks if registration in heard], event

    def about(self, event: HookEvent) -> tuple[Registration, ...]:
        """The hooks that the event is about, in their order. Asks none of them."""
        hooks = self._hooks[type(event).__name__]
        if not hooks:
            return ()
        subjects, by = subjects_of(event), event.by
        if subjects is not None:
            hooks = tuple(one for one in hooks if one.matcher.fits(subjects))
        return tuple(
            one for one in hooks if one.terms.heard_by(by) and (callable(one.handler) or told_to_handlers(event))
        )

    def _about(self, event: HookEvent) -> tuple[Registration, ...]:
        """The same, to be asked now: those that are heard once are taken away."""
        meant = self.about(event)
        for one in meant:
            if one.terms.once:
                one.remove()
        return meant

    async def _ask_handlers(self, hooks: list[Registration], event: HookEvent) -> dict[Registration, Heard]:
        """Ask all handlers at once. The same handler from several settings files is asked once."""
        heard: dict[Registration, Heard] = {}
        asked: list[tuple[object, Terms]] = []
        async with anyio.create_task_group() as group:
            for registration in hooks:
                same = (registration.handler, registration.terms)
                if registration.source in ("person", "workspace") and same in asked:
                    continue
                asked.append(same)
                if registration.terms.background:
                    heard[registration] = self._begin(registration, event)
                    continue
                heard[registration] = Heard(registration.by)
                group.start_soon(self._ask_handler, registration, event, heard)
        return heard

    def _begin(self, registration: Registration, event: HookEvent) -> Heard:
        """Start a handler that nobody waits for. It decides nothing, and neither does that it cannot be started."""
        handler = cast("HookHandler", registration.handler)
        timeout = self._timeout if handler.timeout is None else handler.timeout
        wakes = registration.terms.wakes
        fault = self._background.begin(registration.by, handler, event, timeout, wakes=wakes)
        return Heard(registration.by, (), fault, fail_open=True)

    async def _ask_handler(
        self, registration: Registration, event: HookEvent, heard: dict[Registration, Heard]
    ) -> None:
        handler = cast("HookHandler", registration.handler)
        timeout = self._timeout if handler.timeout is None else handler.timeout
        result = HandlerResult(fault=f"no answer within {timeout:g} s")
        with anyio.move_on_after(timeout + self._grace):
            try:
                result = await handler.run(event_json(event), timeout)
            except Exception as error:  # noqa: BLE001 - a handler that raises has failed, and the loop goes on
                result = HandlerResult(fault=_described(error))
        by, fail_open = registration.by, registration.terms.fail_open
        try:
            answers = in_our_fields(event, result.answers)
        except Misfit as error:
            heard[registration] = Heard(by, (), str(error), fail_open, result.notices)
        else:
            heard[registration] = Heard(by, answers, capped(result.fault), fail_open, result.notices)

    async def _ask_callable(self, registration: Registration, event: HookEvent) -> Heard:
        """Ask one callable, with a copy of the event, so that it changes nothing but by its answer."""
        by, fail_open = registration.by, registration.terms.fail_open
        function = cast("Callable[[Any], object]", registration.handler)
        async with self._threads:
            with anyio.move_on_after(self._timeout) as scope:
                value, fault = await _called(function, event)
                if fault:
                    return Heard(by, (), fault, fail_open)
                try:
                    return Heard(by, understood(type(event).__name__, value))
                except Misfit as error:
                    return Heard(by, (), capped(str(error)), fail_open)
        assert scope.cancelled_caught
        return Heard(by, (), f"no answer within {self._timeout:g} s", fail_open)


async def _called(function: Callable[[Any], object], event: HookEvent) -> tuple[object, str]:
    """What the function returned, or how it failed. What blocks runs in a thread, which is left alone at a time-out."""
    if inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(type(function).__call__):
        made, fault = _tried(function, copy.deepcopy(event))
    else:
        own = anyio.CapacityLimiter(1)  # the registry's own limit holds already; the tools' threads are not ours
        made, fault = await anyio.to_thread.run_sync(
            _tried_on_copy, function, event, abandon_on_cancel=True, limiter=own
        )
    if fault or not inspect.isawaitable(made):
        return made, fault
    try:
        return await cast("Awaitable[object]", made), ""
    except (Exception, SystemExit) as error:  # noqa: BLE001 - whatever a hook raises is its fault, and never ours
        return None, _described(error)


def _tried_on_copy(function: Callable[[Any], object], event: HookEvent) -> tuple[object, str]:
    return _tried(function, copy.deepcopy(event))


def _tried(function: Callable[[Any], object], event: HookEvent) -> tuple[object, str]:
    try:
        return function(event), ""
    except BaseException as error:  # noqa: BLE001 - in a thread of its own not even an exit or a cancellation is ours
        return None, _described(error)


def _described(error: BaseException) -> str:
    return capped(f"{type(error).__name__}: {error}")

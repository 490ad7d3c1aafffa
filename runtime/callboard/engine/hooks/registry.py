"""Registry of hooks: it calls the hooks of an event in order and combines their answers.

One registry serves every agent of a session, whatever its kind. Handlers that are not callables start together, on the
original input. Then the callables run one by one, in the order of their sources, each on the input as rewritten so far.
All of them run, and `core/hooks/merge.py` combines the answers. A failing hook never raises into the loop: its failure
is a `HookOutcome`.

Background hooks decide nothing, and their output arrives later. They run in one task group for as long as the session
is hosted.
"""

from __future__ import annotations

import copy
import inspect
import threading
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

import anyio
import anyio.to_thread
import structlog
from anyio.abc import TaskGroup

from callboard.core.hooks.matching import MATCHED, subjects_of
from callboard.core.hooks.merge import (
    HookOutcome,
    InvalidHook,
    Matcher,
    approving_input,
    cap_text,
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
from callboard.core.hooks.payloads import event_json, in_our_fields, reaches_handlers
from callboard.ports.foreign_code import error_text, result_of_foreign, result_of_own_task
from callboard.ports.hooks import HookHandler, HookTerms, LateHookOutput
from callboard.types.choices import unknown
from callboard.types.errors import UsageError
from callboard.types.hook_answers import (
    FITTING,
    MARKS,
    SOURCES,
    AddContext,
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
from callboard.types.lazy_dataclass import dataclass

THREADS = 40
"""Most callables of all agents that run at once. The timeout of a further one starts when it runs."""

Hook = Callable[[Any], object] | HookHandler


@dataclass(frozen=True, slots=True, eq=False)
class Registration:
    """One registered hook. Even after `remove` it answers events that it has already received."""

    registry: HookRegistry
    event: str
    handler: Hook
    matcher: Matcher
    source: HookSource
    terms: HookTerms

    def remove(self) -> None:
        """Remove the hook. May be called from any thread, and repeatedly."""
        self.registry.discard(self)

    def with_handler(self, change: Callable[[HookHandler], HookHandler]) -> Registration:
        """Return the registration with another handler. A callable is kept."""
        if callable(self.handler):
            return self
        return replace(self, handler=change(self.handler))

    @property
    def by(self) -> str:
        """Return the name of the hook for users and the model: `hook NAME (SOURCE)`."""
        name = getattr(self.handler, "__name__", None) or getattr(self.handler, "name", None)
        return f"hook {name or type(self.handler).__name__} ({self.source})"


class HookRegistry:
    """All hooks of a session. `add`, `include` and `remove` may be called from any thread."""

    def __init__(self, timeout: float = 60, grace: float = 5) -> None:
        """Set the default timeout of one hook, and the grace period, in seconds.

        After the grace period, a handler that should enforce its own timeout is cancelled.
        """
        self._timeout = timeout
        self._grace = grace
        self._threads = anyio.CapacityLimiter(THREADS)
        self._lock = threading.Lock()
        """Held during a copy-and-swap. Readers see one complete tuple and never wait."""
        self._hooks: dict[str, tuple[Registration, ...]] = dict.fromkeys(FITTING, ())
        self._background = BackgroundHooks()
        self._once = set[Registration]()
        """Hooks that run only once, and are running."""
        self._transcribe: Callable[[HookEvent], Awaitable[str]] = _nothing_to_transcribe

    def update_transcripts_by(self, transcribe: Callable[[HookEvent], Awaitable[str]]) -> None:
        """Call a function before the handlers of an event.

        It updates the file of the event's `transcript_path`, and returns a description of any failure. The host of the
        agents registers it.
        """
        self._transcribe = transcribe

    def add(
        self,
        event: str,
        handler: Hook,
        matcher: str = "",
        *,
        source: HookSource = "person",
        fail_open: bool = False,
        terms: HookTerms | None = None,
    ) -> Registration:
        """Register a callable or a handler. `terms` has more options than `fail_open`.

        Raises `UsageError` for an unknown event, source or matcher.
        """
        if event not in FITTING:
            raise UsageError(unknown("hook event", event, sorted(FITTING)))
        if source not in SOURCES:
            raise UsageError(unknown("source of hooks", source, SOURCES))
        if matcher and event not in MATCHED:
            raise UsageError(f"{event} has no matcher: leave out {matcher!r}")
        if not callable(handler) and not hasattr(cast("object", handler), "run"):
            raise UsageError(f"{handler!r} is neither a callable nor a hook handler")
        try:
            read = read_matcher(matcher)
        except InvalidHook as error:
            raise UsageError(str(error)) from error
        registration = Registration(self, event, handler, read, source, terms or HookTerms(fail_open))
        with self._lock:
            together = (*self._hooks[event], registration)
            self._hooks[event] = tuple(sorted(together, key=lambda member: SOURCES.index(member.source)))
        return registration

    def change_handlers(self, change: Callable[[HookHandler], HookHandler]) -> None:
        """Replace each handler by the result of `change`. Callables are kept."""
        with self._lock:
            for event, registrations in self._hooks.items():
                self._hooks[event] = tuple(registration.with_handler(change) for registration in registrations)

    def include(self, function: Callable[[Any], object], *, source: HookSource = "person") -> list[Registration]:
        """Register a function for each of its `@hook` marks. Raises `UsageError` if it has none."""
        marks: tuple[HookMark, ...] = getattr(function, MARKS, ())
        if not marks:
            raise UsageError(f"{function!r} has no @hook mark that says for which event it is")
        return [self.add(mark.event, function, mark.matcher, source=source) for mark in marks]

    def longest(self) -> float:
        """Return the most seconds that the hooks of one event may take together.

        Callables run one by one, handlers in parallel.
        """
        moments = (self._longest(registrations) for registrations in self._hooks.values())
        return max(moments, default=self._timeout)

    def _longest(self, registrations: tuple[Registration, ...]) -> float:
        registrations = tuple(registration for registration in registrations if not registration.terms.background)
        handlers = [
            registration.handler
            for registration in registrations
            if hasattr(cast("object", registration.handler), "run")
        ]
        times = [cast("HookHandler", handler).timeout for handler in handlers]
        together = max((self._timeout if time is None else time for time in times), default=0.0)
        return self._timeout * (len(registrations) - len(handlers)) + together + self._grace

    def longest_timeout(self, event: str) -> float:
        """Return the longest timeout in seconds that a file sets for a handler of this event; 0 if none does."""
        handlers = [
            registration.handler
            for registration in self._hooks[event]
            if hasattr(cast("object", registration.handler), "run")
        ]
        return max((cast("HookHandler", handler).timeout or 0.0 for handler in handlers), default=0.0)

    def discard(self, registration: Registration) -> None:
        """Remove a hook. Does nothing if it is already gone."""
        with self._lock:
            remaining = tuple(member for member in self._hooks[registration.event] if member is not registration)
            self._hooks[registration.event] = remaining

    def has(self, event: str) -> bool:
        """Return True if any hook is registered for this event."""
        return bool(self._hooks.get(event))

    async def run_background(self, tell: Callable[[LateHookOutput], Awaitable[None]]) -> None:
        """Run background hooks until cancelled, and pass their output to `tell`.

        No background hook outlives this call.
        """
        await self._background.run_background(tell)

    async def pre_tool_use(self, event: PreToolUse) -> PreVerdict:
        """Return the combined answer of the hooks to a call. Raises nothing."""
        replies, after = await self._ask_all(event)
        return pre_verdict(replies, None if after is event else cast("PreToolUse", after).call.input)

    async def permission_request(self, event: PermissionRequest) -> PreVerdict:
        """Return the hooks' answer in place of the user's. Raises nothing."""
        replies, after = await self._ask_all(event)
        return permission_verdict(replies, None if after is event else cast("PermissionRequest", after).call.input)

    async def post_tool_use(self, event: PostToolUse) -> PostVerdict:
        """Return the combined answer of the hooks to a result. Raises nothing."""
        replies, after = await self._ask_all(event)
        return post_verdict(replies, None if after is event else cast("PostToolUse", after).result)

    async def user_prompt_submit(self, event: UserPromptSubmit) -> PromptVerdict:
        """Return the combined answer of the hooks to a prompt. Raises nothing."""
        replies, _ = await self._ask_all(event)
        return prompt_verdict(replies)

    async def stop(self, event: Stop | SubagentStop) -> StopVerdict:
        """Return the combined answer of the hooks to the end of a turn. Raises nothing."""
        replies, _ = await self._ask_all(event)
        return stop_verdict(replies)

    async def fire(self, event: HookEvent) -> MomentVerdict:
        """Return the combined answer of the hooks to any other event. Raises nothing."""
        replies, _ = await self._ask_all(event)
        return moment_verdict(type(event).__name__, replies)

    async def _ask_all(self, event: HookEvent) -> tuple[list[HookOutcome], HookEvent]:
        """Run every hook that matches the event. Return their results in order, and the event as rewritten."""
        hooks = self._matching_hooks(event)
        replies: dict[Registration, HookOutcome] = {}
        try:
            await self._ask_handlers([each for each in hooks if not callable(each.handler)], event, replies)
            events = dict.fromkeys(replies, event)
            for registration in replies:
                event = rewritten(event, replies[registration])
            for registration in hooks:
                if callable(registration.handler):
                    events[registration] = event
                    replies[registration] = await self._ask_callable(registration, event)
                    event = rewritten(event, replies[registration])
        finally:
            self._end_once(hooks, replies)
        outcomes = [approving_input(replies[each], events[each], event) for each in hooks if each in replies]
        return outcomes, event

    def about(self, event: HookEvent) -> tuple[Registration, ...]:
        """Return the hooks that match the event, in order, without running them."""
        hooks = self._hooks[type(event).__name__]
        if not hooks:
            return ()
        subjects = subjects_of(event)
        by = event.by
        if subjects is not None:
            hooks = tuple(registration for registration in hooks if registration.matcher.fits(subjects))
        return tuple(
            registration
            for registration in hooks
            if registration.terms.heard_by(by) and (callable(registration.handler) or reaches_handlers(event))
        )

    def _matching_hooks(self, event: HookEvent) -> tuple[Registration, ...]:
        """Return the hooks that match the event, to be run now. A hook that runs only once never runs twice at once."""
        concerned = tuple(registration for registration in self.about(event) if registration not in self._once)
        self._once.update(registration for registration in concerned if registration.terms.once)
        return concerned

    def _end_once(self, hooks: Sequence[Registration], replies: Mapping[Registration, HookOutcome]) -> None:
        """Remove the hooks that run only once and have run. One whose condition did not match stays."""
        for registration in hooks:
            if registration.terms.once:
                self._once.discard(registration)
                outcome = replies.get(registration)
                if outcome is None or not outcome.skipped:
                    registration.remove()

    async def _ask_handlers(
        self, hooks: list[Registration], event: HookEvent, replies: dict[Registration, HookOutcome]
    ) -> None:
        """Run all handlers in parallel, and put in their outcomes.

        The same handler from several settings files runs once.
        """
        if not hooks:
            return
        begun: list[tuple[object, HookTerms]] = []
        stale = await self._transcribe(event)
        async with anyio.create_task_group() as group:
            for registration in hooks:
                same = (registration.handler, registration.terms)
                if registration.source in ("person", "workspace") and same in begun:
                    continue
                begun.append(same)
                if registration.terms.background:
                    replies[registration] = self._begin(registration, event)
                    continue
                replies[registration] = HookOutcome(registration.by)
                group.start_soon(self._ask_handler, registration, event, replies)
        if stale:
            first = next(iter(replies))
            replies[first] = replace(replies[first], notices=(stale, *replies[first].notices))

    def _begin(self, registration: Registration, event: HookEvent) -> HookOutcome:
        """Begin a background handler. It decides nothing, even if it cannot be started."""
        handler = cast("HookHandler", registration.handler)
        timeout = self._timeout if handler.timeout is None else handler.timeout
        wakes = registration.terms.wakes
        fault = self._background.begin(registration.by, handler, event, timeout, wakes=wakes)
        return HookOutcome(registration.by, (), fault, fail_open=True)

    async def _ask_handler(
        self, registration: Registration, event: HookEvent, replies: dict[Registration, HookOutcome]
    ) -> None:
        handler = cast("HookHandler", registration.handler)
        timeout = self._timeout if handler.timeout is None else handler.timeout
        result = HandlerResult(fault=f"no answer within {timeout:g} s")
        with anyio.move_on_after(timeout + self._grace):
            try:
                result = await result_of_foreign(handler.run(event_json(event), timeout))
            except Exception as error:  # noqa: BLE001 - a handler that raises has failed, and the loop continues
                result = HandlerResult(fault=_described(error))
        by = registration.by
        fail_open = registration.terms.fail_open
        try:
            answers = in_our_fields(event, result.answers)
        except InvalidHook as error:
            replies[registration] = HookOutcome(by, (), str(error), fail_open, result.notices)
        else:
            replies[registration] = HookOutcome(
                by, answers, cap_text(result.fault), fail_open, result.notices, result.skipped
            )

    async def _ask_callable(self, registration: Registration, event: HookEvent) -> HookOutcome:
        """Call one callable with a copy of the event, so that only its answer has an effect."""
        by = registration.by
        fail_open = registration.terms.fail_open
        function = cast("Callable[[Any], object]", registration.handler)
        async with self._threads:
            with anyio.move_on_after(self._timeout) as scope:
                value, fault = await _called(function, event)
                if fault:
                    return HookOutcome(by, (), fault, fail_open)
                try:
                    return HookOutcome(by, understood(type(event).__name__, value))
                except InvalidHook as error:
                    return HookOutcome(by, (), cap_text(str(error)), fail_open)
        assert scope.cancelled_caught
        return HookOutcome(by, (), f"no answer within {self._timeout:g} s", fail_open)


async def _nothing_to_transcribe(event: HookEvent) -> str:
    return ""


async def _called(function: Callable[[Any], object], event: HookEvent) -> tuple[object, str]:
    """Return the function's result, or the description of its failure.

    A blocking function runs in a thread, which is abandoned at a timeout.
    """
    if inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(type(function).__call__):
        made, fault = _tried(function, copy.deepcopy(event))
    else:
        own = anyio.CapacityLimiter(1)  # the registry has its own limit; the threads of tools are separate
        made, fault = await anyio.to_thread.run_sync(
            _tried_on_copy, function, event, abandon_on_cancel=True, limiter=own
        )
    if fault or not inspect.isawaitable(made):
        return made, fault
    try:
        return await result_of_foreign(result_of_own_task(cast("Awaitable[object]", made))), ""
    except (Exception, SystemExit) as error:  # noqa: BLE001 - any exception of a hook is a fault of that hook
        return None, _described(error)


def _tried_on_copy(function: Callable[[Any], object], event: HookEvent) -> tuple[object, str]:
    return _tried(function, copy.deepcopy(event))


def _tried(function: Callable[[Any], object], event: HookEvent) -> tuple[object, str]:
    try:
        return function(event), ""
    except BaseException as error:  # noqa: BLE001 - in its thread even an exit or a cancellation is the hook's
        return None, _described(error)


def _described(error: BaseException) -> str:
    return cap_text(error_text(error))


MOST = 64
"""Most background hooks at once. A further one is refused with a notice."""

log = structlog.get_logger("callboard.hooks")


@dataclass(slots=True)
class _BackgroundRun:
    group: TaskGroup
    tell: Callable[[LateHookOutput], Awaitable[None]]


class BackgroundHooks:
    """All background hooks of a session."""

    def __init__(self) -> None:
        self._background_run: _BackgroundRun | None = None
        self._running = 0

    async def run_background(self, tell: Callable[[LateHookOutput], Awaitable[None]]) -> None:
        """Run background hooks until cancelled."""
        async with anyio.create_task_group() as group:
            self._background_run = _BackgroundRun(group, tell)
            try:
                await anyio.sleep_forever()
            finally:
                self._background_run = None
                group.cancel_scope.cancel()

    def begin(self, by: str, handler: HookHandler, event: HookEvent, timeout: float, *, wakes: bool) -> str:
        """Begin a background hook. Return the reason if it cannot run; empty if it runs."""
        if self._background_run is None:
            return "nothing runs in the background here"
        if self._running >= MOST:
            return f"{MOST} hooks run in the background already"
        self._running += 1
        self._background_run.group.start_soon(
            self._run, self._background_run, by, _Begun(handler, event, timeout, wakes)
        )
        return ""

    async def _run(self, tended: _BackgroundRun, by: str, begun: _Begun) -> None:
        try:
            result = await begun.result()
        finally:
            self._running -= 1
        late = _late(by, begun, result)
        if late.context or late.notices:
            await tended.tell(late)


@dataclass(frozen=True, slots=True)
class _Begun:
    handler: HookHandler
    event: HookEvent
    timeout: float
    wakes: bool

    async def result(self) -> HandlerResult:
        try:
            return await result_of_foreign(self.handler.run(event_json(self.event), self.timeout))
        except Exception as error:  # noqa: BLE001 - as in the registry: any exception is a fault of the hook
            return HandlerResult(fault=error_text(error))


def _late(by: str, begun: _Begun, result: HandlerResult) -> LateHookOutput:
    """Return the late output of a result: texts for the model, messages and faults for the user.

    Decisions are dropped.
    """
    context = tuple(answer.text for answer in result.answers if isinstance(answer, AddContext))
    notices = (*result.notices, *([f"failed: {cap_text(result.fault)}"] if result.fault else []))
    if begun.wakes and result.blocked:
        return LateHookOutput(by, begun.event.by, (result.blocked,), notices, wake=True)
    return LateHookOutput(by, begun.event.by, context, notices)

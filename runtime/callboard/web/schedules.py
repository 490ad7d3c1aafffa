"""Screens of the schedules: all of a workspace with a calendar and the newest fires, and one schedule with its history.

Texts come from the listing of the command line (`cli/views/schedules.py`). A change goes through `ScheduleInspector`.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from datetime import date, timedelta

import htpy as h
from htpy import Element, Node
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from callboard.cli.views.cost import spent_words
from callboard.cli.views.permission import spell_out
from callboard.cli.views.schedules import NOBODY, firing_description, outcome_words, rule_lines, sent_words, took_words
from callboard.core.keys import fires_prefix, schedule_key, short_id
from callboard.core.scheduling import budget_words
from callboard.core.scheduling.cron import CronInvalid
from callboard.core.scheduling.fields import InvalidField, format_duration
from callboard.core.scheduling.history import newest_first, next_fires, seconds_of
from callboard.sessions.inspect.resources import SCHEDULES, ScheduleStatus, last_fired, schedule_state
from callboard.sessions.inspect.schedule_files import file_faults
from callboard.sessions.inspect.schedules import LIVE, ScheduleInspector, schedules_of
from callboard.types.errors import UsageError
from callboard.types.lazy_dataclass import dataclass
from callboard.types.schedules import Fire, Schedule
from callboard.web.agent import agent_path
from callboard.web.guard import EVENTS, visit_of
from callboard.web.html import Viewer, WebPage, brief, chosen, clock, facts, field, form, path_of, table
from callboard.web.new_session import PATH as NEW
from callboard.web.routes import EventStream, PageServices, html_response, row_stream, viewer_of

PATH = "/schedules"
ADD = f"{PATH}/add"
SEEN = "seen"
_DAYS = 14
"""Days of the calendar."""
_TIMES = 3
"""Most times of a schedule on one day that the calendar names; more are counted."""
_MOST_TIMES = 2_000
"""Most next times of a schedule that the calendar reads."""
_FIRES = 20
"""Newest fires that the list of all schedules shows."""
_HISTORY = 100
_NEXT = 5
_SESSIONS = 50
"""Newest sessions that a new schedule may belong to."""
_GOOD: Mapping[str, str] = {"done": "good", "failed": "bad", "timed_out": "bad", "lost": "bad", "missed": "warn"}
_WAITING = ("waiting", "running")


@dataclass(frozen=True, slots=True)
class _Listed:
    """All schedules of the workspace at one moment."""

    rows: Sequence[ScheduleStatus]
    fires: Sequence[Fire]
    faults: Sequence[str]
    sessions: Sequence[tuple[str, str]]
    """Ids and titles of the sessions that a new schedule may belong to, the newest first."""


@dataclass(frozen=True, slots=True)
class _Shown:
    """One schedule at one moment."""

    row: ScheduleStatus
    fires: Sequence[Fire]
    spent: str

    @property
    def path(self) -> str:
        return schedule_path(self.row.session, self.row.schedule.id)


def schedule_path(session: str, schedule: str) -> str:
    """Return the path of a schedule's screen."""
    return path_of("sessions", session, "schedules", schedule)


def _name(schedule: Schedule) -> str:
    return spell_out(schedule.name or schedule.id)


# All schedules


def _list_page(listed: _Listed, viewer: Viewer) -> WebPage:
    names = {row.schedule.id: _name(row.schedule) for row in listed.rows}
    fragments = {
        "schedules": _table(listed, viewer),
        "calendar": h.section("#calendar", aria_label="Calendar")[
            h.h2[f"The next {_DAYS} days"], calendar(listed.rows, viewer, _DAYS)
        ],
        "fires": h.section("#fires", aria_label="History")[
            h.h2["Newest runs"], _history(listed.fires[:_FIRES], viewer, names)
        ],
    }
    return WebPage("Schedules", PATH, fragments, _add_form(listed.sessions, viewer))


def _table(listed: _Listed, viewer: Viewer) -> Element:
    heads = ("Schedule", "When", "State", "Next", "Last", "Prompt")
    nobody = any(_waits(row) for row in listed.rows)
    return h.section("#schedules")[
        [h.p(".about.warn")[spell_out(fault)] for fault in listed.faults],
        h.p(".about.warn")["No running process would fire them: start callboard serve."] if nobody else None,
        table(heads, [_cells(row, viewer) for row in listed.rows], nothing=_nothing()),
    ]


def _nothing() -> str:
    return SCHEDULES.nothing[:1].upper() + SCHEDULES.nothing[1:]


def _waits(row: ScheduleStatus) -> bool:
    return row.schedule.state == "active" and row.schedule.enabled and not row.fired_by


def _cells(row: ScheduleStatus, viewer: Viewer) -> Sequence[Node]:
    schedule = row.schedule
    return (
        h.a(href=schedule_path(row.session, schedule.id))[_name(schedule)],
        spell_out(firing_description(schedule)),
        _state(schedule),
        _next_of(row, viewer),
        clock(last_fired(schedule), viewer),
        brief(schedule.prompt),
    )


def _state(schedule: Schedule) -> Element:
    style = {"active": "good", "paused": "warn"}.get(schedule.state, "dim")
    return h.span(class_=f"state {style}")[spell_out(schedule_state(schedule))]


def _next_of(row: ScheduleStatus, viewer: Viewer) -> Node:
    try:
        times = next_fires(row.schedule, row.now, 1)
    except CronInvalid:
        return h.span(".state.bad")["cannot fire"]
    return clock(times[0], viewer) if times else ""


def calendar(rows: Sequence[ScheduleStatus], viewer: Viewer, days: int) -> Node:
    """Return the times of the next days, in the reader's time zone."""
    by_day: dict[date, list[tuple[ScheduleStatus, list[float]]]] = {}
    for row in rows:
        until = viewer.local(row.now).date() + timedelta(days=days)
        for day, times in _days_of(row, viewer).items():
            if day < until:
                by_day.setdefault(day, []).append((row, times))
    if not by_day:
        return h.p(".nothing")["Nothing is due."]
    return h.ul(".calendar")[
        [
            h.li[
                h.h3[f"{day:%a} {day.day} {day:%b}"],
                [_due(row, times, viewer) for row, times in sorted(by_day[day], key=lambda each: each[1][0])],
            ]
            for day in sorted(by_day)
        ]
    ]


def _days_of(row: ScheduleStatus, viewer: Viewer) -> dict[date, list[float]]:
    days: dict[date, list[float]] = {}
    try:
        times = next_fires(row.schedule, row.now, _MOST_TIMES)
    except CronInvalid:
        return {}
    for at in times:
        days.setdefault(viewer.local(at).date(), []).append(at)
    if len(times) == _MOST_TIMES:
        days.pop(max(days))  # its times are not all read
    return days


def _due(row: ScheduleStatus, times: Sequence[float], viewer: Viewer) -> Element:
    shown = ", ".join(f"{viewer.local(at):%H:%M}" for at in times[:_TIMES])
    many = f"{len(times):,} times from {viewer.local(times[0]):%H:%M}"
    return h.div(".due")[
        h.span(".at")[many if len(times) > _TIMES else shown],
        " ",
        h.a(href=schedule_path(row.session, row.schedule.id))[_name(row.schedule)],
    ]


def _history(fires: Sequence[Fire], viewer: Viewer, names: Mapping[str, str] | None = None) -> Element:
    """Return fires, newest first. `names`: of the schedules; None: all are of one."""
    heads = ("Due", *(("Schedule",) if names is not None else ()), "Outcome", "Took", "Cost", "Agent", "Why")
    rows = [
        (
            clock(fire.nominal, viewer),
            *((names.get(fire.schedule) or spell_out(fire.schedule),) if names is not None else ()),
            h.span(class_=f"state {_GOOD.get(fire.outcome, '')}")[outcome_words(fire).replace("_", " ")],
            took_words(seconds_of(fire)),
            f"${fire.cost_usd:.4f}" if fire.tokens or fire.cost_usd else "",
            h.a(href=agent_path(fire.session, fire.agent))[spell_out(fire.agent)] if fire.agent else "",
            spell_out(fire.why),
        )
        for fire in fires
    ]
    return table(heads, rows, nothing="It has not run yet." if names is None else "Nothing has run yet.")


# One schedule


def _schedule_page(shown: _Shown, viewer: Viewer) -> WebPage:
    schedule = shown.row.schedule
    fragments = {
        "schedule": _facts(shown, viewer),
        "actions": _actions(shown, viewer),
        "fires": h.section("#fires", aria_label="History")[
            h.h2["History"], _history(shown.fires[:_HISTORY], viewer), _hidden(len(shown.fires) - _HISTORY)
        ],
    }
    controls = None if schedule.source or schedule.state == "cancelled" else _edit_form(shown, viewer)
    return WebPage(_name(schedule), shown.path, fragments, controls, back=(PATH, "Schedules"))


def _hidden(count: int) -> Node:
    return h.p(".about")[f"{count:,} older runs are not shown."] if count > 0 else None


def _facts(shown: _Shown, viewer: Viewer) -> Element:
    row = shown.row
    schedule = row.schedule
    whole = budget_words(schedule.budget) or "no limit of its own"
    each = budget_words(schedule.fire_budget) or "no limit of its own"
    rules = [line.partition(": ") for line in rule_lines(schedule)]
    return h.section("#schedule")[
        facts(
            [
                ("When", spell_out(firing_description(schedule))),
                ("State", _state(schedule)),
                ("Prompt", h.div(".text")[spell_out(schedule.prompt)]),
                ("Next", _next_times(row, viewer)),
                ("Last", clock(last_fired(schedule), viewer)),
                ("Fired by", spell_out(row.fired_by) or _nobody(row)),
                ("Session", h.a(href=path_of("sessions", row.session))[spell_out(row.session[:8])]),
                ("File", h.code[spell_out(schedule.source)] if schedule.source else None),
                *((name[:1].upper() + name[1:], spell_out(text)) for name, _, text in rules),
                ("May spend", f"{whole} in all, {each} for each run"),
                ("Has spent", spell_out(shown.spent)),
            ]
        )
    ]


def _nobody(row: ScheduleStatus) -> Node:
    return h.span(".state.warn")["no running process: start callboard serve"] if _waits(row) else None


def _next_times(row: ScheduleStatus, viewer: Viewer) -> Node:
    try:
        times = next_fires(row.schedule, row.now, _NEXT)
    except CronInvalid:
        return None
    return [h.div[clock(at, viewer)] for at in times]


def _actions(shown: _Shown, viewer: Viewer) -> Element:
    schedule = shown.row.schedule
    path = shown.path
    run = form(viewer, f"{path}/run", h.button(".primary", type="submit")["Run now"], label="Run now")
    pause = h.details[
        h.summary["Pause …"],
        form(
            viewer,
            f"{path}/pause",
            field("Reason", h.input(name="text"), "(optional)"),
            h.button(type="submit")["Pause it"],
            label="Pause",
        ),
    ]
    remove = h.details[
        h.summary["Remove …"],
        h.p(".about")["It never runs again. Its history stays."],
        form(viewer, f"{path}/remove", h.button(".danger", type="submit")["Remove it"], label="Remove"),
    ]
    resume = form(viewer, f"{path}/resume", h.button(type="submit")["Resume"], label="Resume")
    return h.section("#actions", aria_label="Actions")[
        h.div(".buttons")[
            run,
            pause if schedule.state == "active" else resume if schedule.state == "paused" else None,
            remove if schedule.state in LIVE and not schedule.source else None,
        ],
        h.p(".about")["Its file decides what it does: change it there."] if schedule.source else None,
    ]


_ZONES = "a name such as Europe/Berlin"
_LABELS: Mapping[str, tuple[str, str]] = {
    "name": ("Name", "(optional)"),
    "cron": ("Times", "such as 0 9 * * 1-5, @daily, every 20m, at 2030-12-01T09:00"),
    "timezone": ("Time zone", _ZONES),
    "prompt": ("Prompt", ""),
    "misfire": ("Missed runs", ""),
    "overlap": ("While an earlier run is in progress", ""),
    "deadline": ("Stop a run after", "such as 20m; empty: never"),
    "retries": ("Try a failed run again", "times"),
    "max_runs": ("End after", "runs; empty: never"),
}
"""Fields that the page edits, with label and hint."""
_CHOICES: Mapping[str, Sequence[tuple[str, str]]] = {
    "misfire": (("latest", "run the latest"), ("all", "run all"), ("skip", "skip them")),
    "overlap": (
        ("skip", "skip the new one"),
        ("queue", "queue it"),
        ("replace", "replace it"),
        ("parallel", "run both"),
    ),
}


def fields_of(schedule: Schedule) -> dict[str, str]:
    """Return the fields that the page edits, as they are typed."""
    return {
        "name": schedule.name,
        "cron": schedule.cron,
        "timezone": schedule.timezone,
        "prompt": schedule.prompt,
        "misfire": schedule.misfire,
        "overlap": schedule.overlap,
        "deadline": "" if schedule.deadline is None else format_duration(schedule.deadline),
        "retries": str(schedule.retries),
        "max_runs": "" if schedule.max_runs is None else str(schedule.max_runs),
    }


_BLANK = Schedule(id="new", cron="", prompt="", created_at=0.0)
"""Schedule with the defaults, for the form that adds one."""


def _digest(schedule: Schedule) -> str:
    """Return a text that changes with the fields that the page edits."""
    return short_id("seen", *fields_of(schedule).values())


def _edit_form(shown: _Shown, viewer: Viewer) -> Element:
    schedule = shown.row.schedule
    return h.details(".edit")[
        h.summary["Edit …"],
        form(
            viewer,
            f"{shown.path}/edit",
            h.input(type="hidden", name=SEEN, value=_digest(schedule)),
            [_labelled(name, text) for name, text in fields_of(schedule).items()],
            h.div(".buttons")[h.button(".primary", type="submit")["Save"]],
            label="Edit",
        ),
    ]


def _add_form(sessions: Sequence[tuple[str, str]], viewer: Viewer) -> Element:
    if not sessions:
        return h.p(".about")["A schedule belongs to a session: ", h.a(href=NEW)["start one"], "."]
    return h.details(".edit")[
        h.summary["Add a schedule …"],
        form(
            viewer,
            ADD,
            field("Session", chosen("session", sessions, ""), "whose lead works"),
            [_labelled(name, text) for name, text in fields_of(_BLANK).items()],
            h.div(".buttons")[h.button(".primary", type="submit")["Add"]],
            label="Add",
        ),
    ]


def _labelled(name: str, text: str) -> Element:
    label, hint = _LABELS[name]
    return field(label, _control(name, text), hint)


def _control(name: str, text: str) -> Node:
    if name in _CHOICES:
        return chosen(name, _CHOICES[name], text)
    if name == "prompt":
        return h.textarea(name=name, rows="3", required=True)[spell_out(text)]
    return h.input(name=name, value=spell_out(text))


def changed_fields(schedule: Schedule, posted: Mapping[str, str]) -> dict[str, object]:
    """Return the fields of a form that differ from the schedule. An emptied field is `none`."""
    return {
        name: posted[name].replace("\r\n", "\n").strip() or "none"
        for name, text in fields_of(schedule).items()
        if name in posted and posted[name].replace("\r\n", "\n").strip() != spell_out(text).strip()
    }


# Routes

Change = Callable[[ScheduleInspector, str, Mapping[str, str]], Awaitable[str]]


@contextmanager
def _labelled_faults() -> Generator[None]:
    """Name a wrong field as the form does. Raises `UsageError`."""
    try:
        yield
    except InvalidField as wrong:
        raise UsageError(f"{_LABELS.get(wrong.field, (wrong.field, ''))[0]}: {wrong.what}") from wrong


class _ScheduleRoutes:
    """Handlers of requests."""

    def __init__(self, services: PageServices) -> None:
        self._services = services

    async def list(self, request: Request) -> Response:
        """Show all schedules."""
        return self._services.page(request, await self._listed(request))

    async def follow_list(self, request: Request) -> EventStream:
        """Follow all schedules."""
        prefixes = {"s/": "/schedule/", fires_prefix(): ""}
        return row_stream(self._services.store, prefixes, lambda: self._listed(request))

    async def show(self, request: Request) -> Response:
        """Show one schedule."""
        return self._services.page(request, await self._shown(request))

    async def follow(self, request: Request) -> EventStream:
        """Follow one schedule."""
        session = request.path_params["session"]
        schedule = request.path_params["schedule"]
        prefixes = {schedule_key(session, schedule): "", fires_prefix(session, schedule): ""}
        return row_stream(self._services.store, prefixes, lambda: self._shown(request))

    def change(self, act: Change) -> Callable[[Request], Awaitable[Response]]:
        """Return the handler of a change."""

        async def changing(request: Request) -> Response:
            name = request.path_params["schedule"]
            every = await schedules_of(self._services.store, self._services.places, request.path_params["session"])
            with _labelled_faults():
                text = await act(every.current, name, visit_of(request).form)
            return self._services.done(request, text, schedule_path(every.current.session, name))

        return changing

    async def add(self, request: Request) -> Response:
        """Add a schedule to a session, as `callboard cron add` does, and lead to it."""
        posted = visit_of(request).form
        every = await schedules_of(self._services.store, self._services.places, posted.get("session") or None)
        if not every.inspectors:
            raise UsageError("a schedule belongs to a session: start one first")
        for name in ("cron", "prompt"):
            if not posted.get(name, "").strip():
                raise UsageError(f"{_LABELS[name][0]}: fill it in")
        with _labelled_faults():
            made = every.current.draft(changed_fields(_BLANK, posted))
        await every.current.add(made)
        path = schedule_path(every.current.session, made.id)
        if not request.headers.get("hx-request"):
            return RedirectResponse(path, 303)
        nobody = "" if await every.fires_here(every.current) else f" {NOBODY}"
        return html_response(
            h.p["Added: ", h.a(href=path)[_name(made)], spell_out(f", {firing_description(made)}.{nobody}")]
        )

    def _title(self, session: str) -> str:
        """Return the title of a session with its short id, because many sessions may have the same prompt."""
        row = self._services.requests.session(session)
        title = "" if row is None else brief(row.prompt)
        return f"{title} ({session[:8]})" if title else session

    async def _listed(self, request: Request) -> WebPage:
        every = await schedules_of(self._services.store, self._services.places)
        now = time.time()
        fired_by = await every.fired_by()
        entries = [
            ScheduleStatus(entry.schedule, entry.session, now, fired_by.get(entry.session, ""))
            for entry in every.entries()
        ]
        live = sorted(entries, key=lambda row: (row.schedule.state not in LIVE, row.schedule.state != "active"))
        fires = [fire for inspector in every.inspectors if inspector.all() for fire in await inspector.history()]
        sessions = [(each.session, self._title(each.session)) for each in every.inspectors[:_SESSIONS]]
        faults = await file_faults(self._services.places, (entry.schedule for entry in every.entries()))
        listed = _Listed(live, newest_first(fires), faults, sessions)
        return _list_page(listed, viewer_of(request))

    async def _shown(self, request: Request) -> WebPage:
        every = await schedules_of(self._services.store, self._services.places, request.path_params["session"])
        inspector = every.current
        schedule = inspector.schedule_named(request.path_params["schedule"])
        fired_by = await every.fires_here(inspector)
        row = ScheduleStatus(schedule, inspector.session, time.time(), fired_by)
        fires = await inspector.history(schedule.id)
        spent = spent_words(await inspector.spent_on(schedule.id)) if fires else "nothing"
        return _schedule_page(_Shown(row, fires, spent), viewer_of(request))


async def _run(inspector: ScheduleInspector, name: str, _: Mapping[str, str]) -> str:
    await inspector.run(name)
    return f"It is sent: {sent_words(await inspector.fired_by())}."


async def _pause(inspector: ScheduleInspector, name: str, posted: Mapping[str, str]) -> str:
    await inspector.pause(name, posted.get("text", "").strip())
    return "It is paused."


async def _resume(inspector: ScheduleInspector, name: str, _: Mapping[str, str]) -> str:
    await inspector.resume(name, {})
    return "It fires again."


async def _remove(inspector: ScheduleInspector, name: str, _: Mapping[str, str]) -> str:
    await inspector.cancel(name)
    return "It is cancelled."


async def _edit(inspector: ScheduleInspector, name: str, posted: Mapping[str, str]) -> str:
    schedule = inspector.schedule_named(name)
    if posted.get(SEEN, "") != _digest(schedule):
        raise UsageError("the schedule has changed since the page showed it: reload the page")
    fields = changed_fields(schedule, posted)
    if not fields:
        raise UsageError("nothing is changed")
    changed = await inspector.edit(name, fields)
    return f"Saved: {firing_description(changed)}. Reload the page to edit it again."


def schedule_routes(services: PageServices) -> list[Route]:
    """Return the routes of both screens, and those that take changes."""
    routes = _ScheduleRoutes(services)
    one = "/sessions/{session}/schedules/{schedule}"
    changes = {"run": _run, "pause": _pause, "resume": _resume, "remove": _remove, "edit": _edit}
    return [
        Route(PATH, routes.list),
        Route(f"{PATH}{EVENTS}", routes.follow_list),
        Route(ADD, routes.add, methods=["POST"]),
        Route(one, routes.show),
        Route(f"{one}{EVENTS}", routes.follow),
        *(Route(f"{one}/{name}", routes.change(act), methods=["POST"]) for name, act in changes.items()),
    ]

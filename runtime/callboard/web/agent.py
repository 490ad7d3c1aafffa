"""Screen of one agent: its state, its transcript, and the forms to talk to it.

The transcript is the journal of one life, a page of events at a time, so that a long one stays fast. Its lines are
those of the terminal (`cli/views/events.py`); inputs and results of calls are collapsed.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence

import htpy as h
from htpy import Element, Node
from starlette.requests import Request as WebRequest
from starlette.responses import Response
from starlette.routing import Route

from callboard.cli.terminal.terminal import Block, Line
from callboard.cli.views.events import lines_of, mail_line, result_block, text_of
from callboard.cli.views.permission import spell_out
from callboard.cli.views.team import team_rows
from callboard.core.decoding import read_event
from callboard.core.keys import journal
from callboard.core.live.following import CallProgress, LivePart, LiveText, ReadPosition
from callboard.core.reports.context import Numbered
from callboard.engine.recall import numbered_events
from callboard.ports.notifier import Notifier
from callboard.ports.store import Store
from callboard.ports.store_reading import records_of
from callboard.sessions.handle import SessionHandle
from callboard.sessions.inspect.inspector import handle_of
from callboard.types.errors import UsageError
from callboard.types.events import ContextEdited, EnvelopeReceived, Event, ModelReplied, ToolFinished
from callboard.types.lazy_dataclass import dataclass
from callboard.types.records import AgentRow, Json, ToolCall
from callboard.web.agent_context import agent_screen_path
from callboard.web.guard import EVENTS
from callboard.web.html import Viewer, WebPage, field, form, moment, partial, path_of, shown_lines
from callboard.web.live import LiveFeed, LiveFeeds
from callboard.web.routes import (
    EventStream,
    Messages,
    PageServices,
    RestingNews,
    StreamMessage,
    html_response,
    viewer_of,
)

_PAGE = 200
"""Events of a transcript that one page shows."""
_ENTRIES = "transcript"
_EARLIER = "earlier"
_LARGEST = 50_000
"""Characters of an input or a result that a page shows."""
_CUT = " … The rest appears when the reply is complete."
_STREAMING = "streaming"
"""Id of the element with the reply that streams."""
_OLDER = -1
"""Position of a stream that adds no events, because its page shows older ones."""
_LAST = 2**53
"""Largest position that an address can name."""

Calls = dict[str, ToolCall]
"""Tool calls by their ids."""


def agent_path(session: str, agent: str) -> str:
    """Return the path of an agent's screen."""
    return path_of("sessions", session, "agents", agent)


ACTIONS = ("say", "interrupt", "stop", "kill", "budget")
"""Actions on an agent: the ends of their paths, and values of the button that was pressed."""
_ENDS: Mapping[str, tuple[str, str, str]] = {
    "stop": ("Stop it for good …", "Its calls are settled, and it reports.", "Stop"),
    "kill": ("Kill it …", "It ends at once, with its processes, subagents, and requests.", "Kill"),
}
"""Actions that end an agent: summary, effect, and the text of the button."""
LIMITS = (("cost_usd", "Dollars"), ("tokens", "Tokens"), ("steps", "Model calls"), ("seconds", "Seconds"))
"""Kinds of a limit, as fields of a form, and their names."""


def agent_controls(session: str, agent: str, viewer: Viewer) -> Node:
    """Return the forms that talk to an agent, interrupt its turn, end it, and raise its budget.

    The lead ends with its session.
    """
    path = agent_path(session, agent)
    return h.section(".controls", aria_label=f"Talk to {spell_out(agent)}")[
        form(
            viewer,
            f"{path}/say",
            h.label[h.span[f"Message to {spell_out(agent)}"], h.textarea(name="text", rows="2", required=True)],
            h.div(".buttons")[h.button(".primary", type="submit")["Send"]],
            label="Send a message",
        ),
        h.div(".buttons")[
            form(viewer, f"{path}/interrupt", h.button(type="submit")["Interrupt its turn"], label="Interrupt"),
            h.details[
                h.summary["Raise its budget …"],
                form(
                    viewer,
                    f"{path}/budget",
                    budget_fields(),
                    h.button(type="submit")["Raise the budget"],
                    label="Raise the budget",
                ),
            ],
            None if agent == "lead" else [_end(viewer, path, action) for action in _ENDS],
        ],
    ]


def budget_fields() -> Node:
    """Return the fields of a new budget."""
    return [
        h.p(".about")["The new total, of one or several kinds. Only a limit that it already has can be raised."],
        h.div(".row")[[field(label, h.input(name=kind, size="8", inputmode="decimal")) for kind, label in LIMITS]],
    ]


def _end(viewer: Viewer, path: str, action: str) -> Element:
    summary, about, verb = _ENDS[action]
    return h.details[
        h.summary[summary],
        h.p(".about")[about],
        form(
            viewer,
            f"{path}/{action}",
            h.label[h.span["Reason (optional)"], h.input(name="text")],
            h.button(".danger", type="submit")[verb],
            label=verb,
        ),
    ]


@dataclass(frozen=True, slots=True)
class _Life:
    """The newest life of an agent, and where its journal is."""

    store: Store
    handle: SessionHandle
    row: AgentRow

    @property
    def stream(self) -> str:
        return journal(self.handle.id, self.row.name, self.row.incarnation)

    @property
    def path(self) -> str:
        return agent_path(self.handle.id, self.row.name)


@dataclass(frozen=True, slots=True)
class _Transcript:
    """Part of a journal: its events with their numbers, and the calls that they name."""

    first: int
    """Number before the first event; 0: nothing is earlier."""
    last: int
    events: Sequence[Numbered]
    calls: Calls


def _agent_page(life: _Life, part: _Transcript, viewer: Viewer, *, newest: bool) -> WebPage:
    row = life.row
    title = spell_out(row.name) + (f" ({spell_out(row.agent_type)})" if row.agent_type not in ("", row.name) else "")
    fragments = {
        "state": _state_section(life),
        _ENTRIES: _transcript_section(life.path, part),
        _STREAMING: _streaming_section(),
    }
    controls = (
        None if row.life == "stopped" and row.kind != "lead" else agent_controls(life.handle.id, row.name, viewer)
    )
    back = (path_of("sessions", life.handle.id), "Session")
    query = f"?after={part.last if newest else _OLDER}"
    return WebPage(title, life.path, fragments, controls, back=back, query=query)


def _links(life: _Life) -> Element:
    """Return the links to the other screens of the agent."""
    names = {"context": "Context", "mail": "Messages"}
    links = [h.a(href=agent_screen_path(life.handle.id, life.row.name, each))[text] for each, text in names.items()]
    return h.nav(".links", aria_label="More about this agent")[links]


def _state_section(life: _Life) -> Element:
    seen = life.handle.agents.overview()
    row = next((row for row in team_rows(seen) if row.agent.row.name == life.row.name), None)
    if row is None:
        return h.section("#state")[h.p(".state.dim")["It has ended."], _links(life)]
    agent = row.agent
    _, _, tokens, cost = row.cells
    return h.section("#state")[
        h.p[
            h.span(class_=f"state {row.style}")[spell_out(row.state)],
            f" {spell_out(row.does)}" if row.does else None,
            [" ", moment(agent.doing.since or agent.row.since, lasts=True)],
            [", ", moment(agent.doing.until, counts=True)] if agent.doing.until else None,
        ],
        h.p(".about")[
            ", ".join(
                part
                for part in (spell_out(agent.model), f"{tokens} tokens", cost, f"{agent.summary.steps} steps")
                if part
            )
        ],
        None if seen.host is not None else h.p(".state.warn")["No process hosts the session: this is its last state."],
        _links(life),
    ]


def _transcript_section(path: str, part: _Transcript) -> Element:
    return h.section(f"#{_ENTRIES}", aria_label="Transcript")[_entries(path, part)]


def _entries(path: str, part: _Transcript) -> Node:
    earlier = f"{path}?before={part.first + 1}"
    in_place = {
        "hx-get": f"{path}/entries?before={part.first + 1}",
        "hx-target": f"#{_EARLIER}",
        "hx-swap": "outerHTML",
    }
    link = h.a(href=earlier, **in_place)
    return [
        h.p(f"#{_EARLIER}")[link[f"Show earlier events ({part.first:,})"]] if part.first else None,
        [shown_event(seq, event, part.calls, path) for seq, event in part.events],
    ]


def shown_event(seq: int, event: Event, calls: Calls, path: str = "") -> Element | None:
    """Return one event; None for one that has nothing to show. `path`: of the agent, for the undo of an edit."""
    content = _content(event, calls)
    if content is None:
        return None
    kind, *inner = content
    if path and isinstance(event, ContextEdited) and event.edits:
        inner.append(h.a(href=f"{path}/context#edit-{seq}")["What it removed, and undo"])
    return h.article(class_=f"entry {kind}", id=f"event-{seq}")[h.span(".at")[moment(event.at)], h.div[inner]]


def _content(event: Event, calls: Calls) -> Sequence[Node] | None:
    """Return the kind of an entry, then its content."""
    match event:
        case ModelReplied():
            calls.update({call.id: call for call in event.calls})
            blocks = [block for item in event.blocks if (block := _block(item)) is not None]
            return ("reply", *blocks) if blocks else None
        case ToolFinished():
            return ("call", _finished(event, calls.get(event.call)))
        case EnvelopeReceived() if not event.refused and event.envelope.type == "prompt":
            return ("prompt", h.div(".about")[spell_out(event.envelope.sender)], _text(event.envelope.content))
        case EnvelopeReceived() if not event.refused:
            block = mail_line(event.envelope)
            return None if block is None else ("mail", _collapsed(block, _text(event.envelope.content)))
        case _:
            block = lines_of("", event)
            return None if block is None else ("note", *_styled(block.lines))


def _block(item: Json) -> Element | None:
    """Return one block of a reply. Calls are shown with their results."""
    if item.get("type") == "text" and item.get("text"):
        return _text(str(item["text"]))
    if item.get("type") == "thinking":
        return h.details[h.summary["Thinking"], _text(str(item.get("thinking", "")))]
    return None


def _finished(event: ToolFinished, call: ToolCall | None) -> Node:
    fields = json.dumps(call.input, indent=2, ensure_ascii=False) if call is not None else ""
    head = result_block("", event, call, "brief")
    parts = [
        [h.div(".about")["input"], _fixed(fields)] if fields else None,
        [h.div(".about")["error" if event.is_error else "result"], _fixed(text_of(event.content))],
    ]
    return _collapsed(head, parts)


def _collapsed(head: Block, inner: Node) -> Element:
    return h.details[h.summary[list(_styled(head.lines))], inner]


def _styled(lines: Iterable[Line]) -> Iterable[Node]:
    for line in lines:
        yield h.div(class_=f"line {line.style}")[spell_out(line.text)]


def _text(text: str) -> Element:
    return h.div(".text")[spell_out(text[:_LARGEST])]


def _fixed(text: str) -> Node:
    cut = len(text) - _LARGEST
    return [
        shown_lines([Line(text[:_LARGEST])]),
        h.p(".about")[f"{cut:,} more characters are not shown."] if cut > 0 else None,
    ]


async def _part_of(life: _Life, before: int | None) -> _Transcript:
    """Return the newest part of a journal, or the one before a number."""
    last = await life.store.last(life.stream) if before is None else max(before - 1, 0)
    first = max(last - _PAGE, 0)
    earliest = max(first - _PAGE, 0)
    records = await records_of(life.store, life.stream, earliest, last - earliest) if last else ()
    events = [(record.seq, read_event(record.data, life.stream, record.seq)) for record in records]
    calls = {call.id: call for _, event in events if isinstance(event, ModelReplied) for call in event.calls}
    return _Transcript(first, last, [(seq, event) for seq, event in events if first < seq <= last], calls)


class _AgentRoutes:
    """Handlers of requests."""

    def __init__(self, services: PageServices) -> None:
        self._services = services

    async def show(self, request: WebRequest) -> Response:
        """Show the newest part of the transcript, or an earlier one."""
        life = await self._life(request)
        before = _number(request, "before")
        part = await _part_of(life, before)
        await life.handle.agents.recall_state(life.row)
        await life.handle.agents.look_around()
        return self._services.page(request, _agent_page(life, part, viewer_of(request), newest=before is None))

    async def entries(self, request: WebRequest) -> Response:
        """Return an earlier part of the transcript, for the page that shows the later ones."""
        life = await self._life(request)
        part = await _part_of(life, _number(request, "before"))
        return html_response(h.fragment[_entries(life.path, part)])

    async def follow(self, request: WebRequest) -> EventStream:
        """Follow the state of the agent, and add new events to its transcript."""
        life = await self._life(request)
        after = _number(request, "after")
        resumed = request.headers.get("last-event-id", "")
        position = int(resumed) if resumed.isdecimal() else _OLDER if after is None else after
        follower = _AgentFollower(life, position, self._services.live)
        return EventStream(follower.messages, follower.follow)

    async def _life(self, request: WebRequest) -> _Life:
        handle = await handle_of(self._services.store, request.path_params["session"])
        return _Life(self._services.store, handle, handle.agent_row(request.path_params["agent"]))


class _LiveSection:
    """Reply that streams, on one page."""

    def __init__(self, text: LiveText, position: int, events: Iterable[Numbered]) -> None:
        """`position`, `events`: what the page has read of the agent's journal."""
        self._text = text
        self._progress = CallProgress(position)
        for seq, event in events:
            self.handle_event(seq, event)
        self._seen = ReadPosition()
        self._is_empty = False
        """True if the page shows no reply. A page that has connected again may show an old one."""

    def handle_event(self, seq: int, event: Event) -> None:
        """Process an event of the journal that the page shows now."""
        self._progress.handle_event(seq, event)

    def news(self) -> Iterator[str]:
        """Yield the parts of a message that bring the page up to date."""
        reply = self._text.reply
        current = self._seen.reply
        # A reply that has ended stays until the page shows it from the journal, also if the next one has begun.
        if not self._is_empty and (current is None or reply is None or self._progress.is_past(current)):
            # The element stays, because all parts of a message find their elements before the first one changes any.
            yield partial(_STREAMING, "", swap="innerHTML")
            self._seen = ReadPosition()
            self._is_empty = True
        if reply is None or not self._progress.is_open(reply):
            return
        parts, continues, position = self._text.since(self._seen)
        first = self._seen.parts
        if continues:
            yield from _continued(first - 1, parts.pop(0).text, self._seen.characters)
        if parts:
            elements = [_part(number, part) for number, part in enumerate(parts, first)]
            yield partial(_STREAMING, str(h.fragment[elements]), swap="beforeend")
        self._seen = position
        self._is_empty = False


def _streaming_section() -> Element:
    """Return the place for a reply that streams."""
    return h.section(f"#{_STREAMING}", aria_label="Reply that streams")


def _part(number: int, part: LivePart) -> Element:
    text = h.div(f"#{_STREAMING}-{number}.text")[_visible_text(part.text, 0)]
    match part.kind:
        case "thinking":
            return h.details[h.summary["Thinking …"], text]
        case "call":
            return h.p(".about")[f"calls {spell_out(part.text)}"]
        case "input":
            return h.details[h.summary["Input …"], text]
        case "lost":
            return h.p(".about")["This page has missed a part. The reply appears when it is complete."]
        case _:
            return text


def _continued(number: int, text: str, before: int) -> Iterator[str]:
    visible = _visible_text(text, before)
    if visible:
        yield partial(f"{_STREAMING}-{number}", str(h.fragment[visible]), swap="beforeend")


def _visible_text(text: str, before: int) -> Node:
    """Return the part of a text that a page still shows after a number of characters."""
    room = _LARGEST - before
    if room < 0:
        return ""
    return spell_out(text[:room]) + (_CUT if len(text) > room else "")


class _AgentFollower:
    """One page on an agent: new events of its life, its state when it changes, and its reply as it streams."""

    def __init__(self, life: _Life, position: int, feeds: LiveFeeds) -> None:
        """`position`: number of the newest event that the page has; `_OLDER` if it adds none."""
        self._life = life
        self._position = position
        self._feeds = feeds
        self._feed: LiveFeed | None = None
        self._live: _LiveSection | None = None
        self._calls: Calls = {}
        self._state = ""
        self._changed = Notifier()
        self._journal = Notifier()
        """Notified of all changes but those of the reply that streams."""

    async def follow(self) -> None:
        """Follow the session and the reply, until cancelled."""
        life = self._life
        notify = self._changed.notify
        async with self._feeds.follow_agent(life.handle.id, life.row.name, life.row.incarnation, notify=notify) as feed:
            self._feed = feed
            await life.handle.agents.watch(self._news)

    def _news(self) -> None:
        self._journal.notify()
        self._changed.notify()
        if self._feed is not None:
            self._feed.retry.notify()

    async def messages(self) -> Messages:
        """Yield what has changed. Text follows at once, everything else after a rest."""
        part = await _part_of(self._life, None if self._position < 0 else self._position + 1)
        self._calls = part.calls
        await self._journal.changed(0)
        if self._feed is not None and self._position >= 0:
            self._live = _LiveSection(self._feed.text, self._position, part.events)
        changes = RestingNews(self._changed, self._journal)
        while True:
            due = changes.is_due()
            parts = await self._journal_parts() if due else []
            if self._live is not None:
                parts += self._live.news()
            if parts or due:
                yield StreamMessage("".join(parts), str(self._position) if self._position >= 0 else "")
            await changes.next()

    async def _journal_parts(self) -> list[str]:
        life = self._life
        await life.handle.agents.look_around()  # no row changes when a host is killed
        parts: list[str] = []
        state = str(_state_section(life))
        if state != self._state:
            self._state = state
            parts.append(partial("state", state))
        if self._position < 0:
            return parts
        entries: list[str] = []
        for seq, event in await numbered_events(life.store, life.stream, self._position):
            self._position = seq
            if (entry := shown_event(seq, event, self._calls, life.path)) is not None:
                entries.append(str(entry))
            if self._live is not None:
                self._live.handle_event(seq, event)
        return [*parts, partial(_ENTRIES, "".join(entries), swap="beforeend")] if entries else parts


def _number(request: WebRequest, name: str) -> int | None:
    """Return a number of the query, in the range of positions; None without one.

    Raises `UsageError` for a text that is no number.
    """
    text = request.query_params.get(name)
    if text is None:
        return None
    try:
        return max(_OLDER, min(int(text), _LAST))
    except ValueError:
        raise UsageError(f"{name}: {text!r} is not a number") from None


def agent_routes(services: PageServices) -> list[Route]:
    """Return the routes of the screen."""
    routes = _AgentRoutes(services)
    path = "/sessions/{session}/agents/{agent}"
    return [
        Route(path, routes.show),
        Route(f"{path}/entries", routes.entries),
        Route(f"{path}{EVENTS}", routes.follow),
    ]

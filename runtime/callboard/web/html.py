"""Parts that all screens share: the page around them, lines with a style, times, and forms.

htpy escapes every text and every attribute. No text of a model, a tool, or a repository becomes a link, an image, or
the name of an element: it is shown with its control and invisible characters spelled out.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import UTC, datetime, tzinfo
from urllib.parse import quote

import htpy as h
from htpy import Element, Node

from callboard.cli.terminal.terminal import Line
from callboard.cli.views.events import first_line, shorten
from callboard.cli.views.permission import spell_out
from callboard.types.lazy_dataclass import dataclass
from callboard.web.guard import CODE, EVENTS, FORM_TOKEN

HTMX = "htmx-4.0.1.min.js"
HTMX_EVENTS = "hx-sse-4.0.1.min.js"
_HTMX_CONFIG = json.dumps(
    {
        "history": False,
        "includeIndicatorCSS": False,
        "mode": "same-origin",
        # What an update leaves alone: what the reader opened, and htmx's own mark.
        "morphIgnore": ["open", "data-htmx-powered"],
    }
)
REPLY = "reply"
"""Id of the element that shows the result of a change."""


SCREENS: Sequence[tuple[str, str]] = (
    ("/waiting", "Waiting"),
    ("/sessions", "Sessions"),
    ("/changes", "Changes"),
    ("/schedules", "Schedules"),
    ("/cost", "Cost"),
    ("/policy", "Policy"),
)
"""Paths and names of the screens that every page links to."""
ZONE = "callboard_zone"
"""Cookie with the reader's time zone, which the page's script sets. It is no secret."""


@dataclass(frozen=True, slots=True)
class Viewer:
    """Browser for which a screen is made."""

    form_token: str
    needs_code: bool = False
    """True if each of its changes needs the code of the terminal."""
    zone: tzinfo | None = None
    """The reader's time zone; None: that of this machine."""

    def local(self, at: float) -> datetime:
        """Return a moment in the reader's time zone."""
        return datetime.fromtimestamp(at, UTC).astimezone(self.zone)


@dataclass(frozen=True, slots=True)
class WebPage:
    """One screen: its title, and its fragments by their ids, in order."""

    title: str
    path: str
    fragments: Mapping[str, Element]
    controls: Node = None
    """Forms below the fragments, which do not change."""
    back: tuple[str, str] | None = None
    """Path and name of the screen above it."""
    query: str = ""
    """Query of its stream, with `?`."""
    follows: bool = True
    """False for a screen without a stream, because nothing changes on it."""


def document(screen: WebPage, workspace: str, viewer: Viewer, notice: str = "") -> Element:
    """Return a whole page, which follows its stream. `notice`: the result of a change that led to it."""
    connection = {
        "hx-sse:connect": f"{screen.path}{EVENTS}{screen.query}",
        "hx-swap": "none",
        "hx-config": '{"sse": {"pauseOnBackground": false, "reconnectMaxDelay": 5000}}',
    }
    return h.html(lang="en")[
        _head(f"{screen.title} · Callboard"),
        h.body[
            h.a(".skip", href="#main")["Skip to content"],
            h.header[
                h.a(".brand", href="/waiting")["Callboard"],
                h.span(".workspace", title="Workspace")[spell_out(workspace)],
                h.nav(aria_label="Screens")[
                    [
                        h.a(href=path, aria_current="page" if f"{screen.path}/".startswith(f"{path}/") else None)[name]
                        for path, name in SCREENS
                    ]
                ],
                h.span("#live", role="status")["not live"] if screen.follows else None,
            ],
            h.main("#main", **(connection if screen.follows else {}))[
                h.a(".back", href=screen.back[0])[f"‹ {screen.back[1]}"] if screen.back else None,
                h.h1[screen.title],
                h.div(f"#{REPLY}", role="status", aria_live="polite")[notice_line(notice) if notice else None],
                list(screen.fragments.values()),
                screen.controls,
            ],
            h.footer[
                h.span["j and k move between requests. "],
                h.form(method="post", action="/sign-out")[
                    _secrets(viewer), h.button(".link", type="submit")["Sign out"]
                ],
            ],
            _scripts(),
        ],
    ]


def sign_in_document(*, users: bool = False) -> Element:
    """Return the page on which a browser signs in. It shows nothing of a session. `users`: some have passwords."""
    by_name = h.form(method="post", action="/sign-in", aria_label="Name and password")[
        h.label(for_="user")["Name"],
        h.input("#user", name="user", required=True, autocomplete="username"),
        h.label(for_="password")["Password"],
        h.input("#password", name="password", type="password", required=True, autocomplete="current-password"),
        h.button(".primary", type="submit")["Sign in"],
    ]
    return bare_document(
        "Sign in",
        by_name if users else None,
        h.p[
            "On the machine itself, open the address that " if users else "Open the address that ",
            h.code["callboard web"],
            " prints in its terminal, or paste the token from its end here. Each token signs in one browser.",
        ],
        h.form(method="post", action="/sign-in", autocomplete="off")[
            h.label(for_="token")["Token"],
            h.input("#token", name="token", type="password", required=True, autocomplete="off"),
            h.button(type="submit", class_=None if users else "primary")["Sign in"],
        ],
        h.p(f"#{REPLY}", role="alert"),
        h.p[h.a(href="/waiting")["Already signed in? Continue"]],
    )


def bare_document(title: str, *content: Node) -> Element:
    """Return a page without navigation, for a browser that has not signed in."""
    return h.html(lang="en")[
        _head(f"{spell_out(title)} · Callboard"),
        h.body[
            h.header[h.span(".brand")["Callboard"]],
            h.main("#main.sign-in")[h.h1[spell_out(title)], *content],
            _scripts(),
        ],
    ]


def notice_document(text: str, title: str = "Not done") -> Element:
    """Return a page that says why a request was not carried out."""
    return h.html(lang="en")[
        _head("Callboard"),
        h.body[
            h.header[h.a(".brand", href="/waiting")["Callboard"]],
            h.main("#main")[h.h1[title], h.p[text], h.p[h.a(href="/waiting")["Continue"]]],
        ],
    ]


def _head(title: str) -> Element:
    return h.head[
        h.meta(charset="utf-8"),
        h.meta(name="viewport", content="width=device-width, initial-scale=1"),
        h.meta(name="color-scheme", content="light dark"),
        h.meta(name="htmx-config", content=_HTMX_CONFIG),
        h.title[title],
        h.link(rel="icon", href="/static/icon.svg", type="image/svg+xml"),
        h.link(rel="stylesheet", href="/static/page.css"),
    ]


def _scripts() -> Node:
    """Return the scripts, for the end of the body.

    None is deferred: htmx begins as soon as a deferred script of its own has run, before its extension is there.
    """
    return [h.script(src=f"/static/{name}") for name in (HTMX, HTMX_EVENTS, "page.js")]


def notice_line(text: str) -> Element:
    """Return the result of a change, as the page shows it."""
    return h.p[spell_out(text)]


def partial(target: str, html: str, *, swap: str = "outerMorph") -> str:
    """Return the message of a stream that puts the HTML of an element in the place of the one with this id."""
    return f'<hx-partial hx-target="#{target}" hx-swap="{swap}">{html}</hx-partial>'


def shown_lines(lines: Iterable[Line], *, names: bool = True) -> Element:
    """Return lines as a block of fixed-width text, each with its style. `names`: with the agents before them."""
    rows: list[Node] = []
    for line in lines:
        name = [h.b[spell_out(line.name)], ": "] if names and line.name else None
        rows += [h.span(class_=f"line {line.style}")[name, spell_out(line.text)], "\n"]
    return h.pre(tabindex="0")[rows]


def moment(at: float | None, *, counts: bool = False, lasts: bool = False) -> Node:
    """Return a time, which the page shows in the reader's time zone.

    `counts`: as the time that is left. `lasts`: as the beginning of a state (`since ...`), shown as `for 39 s`.
    """
    if not at:
        return ""
    time = datetime.fromtimestamp(at, UTC)
    local = time.astimezone()
    kind = "until" if counts else "for" if lasts else "since"
    return h.time(datetime=time.isoformat(timespec="seconds"), data_kind=kind)[
        f"{'since ' if lasts else ''}{local:%Y-%m-%d %H:%M:%S}"
    ]


def clock(at: float | None, viewer: Viewer) -> Node:
    """Return a time as date and time of the day in the reader's time zone."""
    if not at:
        return ""
    local = viewer.local(at)
    return h.time(datetime=local.isoformat(timespec="seconds"), data_kind="at")[f"{local:%Y-%m-%d %H:%M}"]


def form(viewer: Viewer, action: str, *inner: Node, label: str = "", encoding: str | None = None) -> Element:
    """Return a form that sends a change, with the secret of the browser, and a field for the code if it is needed.

    `encoding`: that of a form with files.
    """
    return h.form(
        method="post",
        action=action,
        aria_label=label or None,
        autocomplete="off",
        enctype=encoding,
        **{"hx-post": action, "hx-target": f"#{REPLY}", "hx-swap": "innerHTML", "hx-encoding": encoding},
        **{"hx-sync": "this:drop"},  # the second click of a double click sends nothing
    )[
        *inner,
        _secrets(viewer),
    ]


def _secrets(viewer: Viewer) -> Node:
    """Return the fields that each form has: the secret of the browser, and the code if it is needed."""
    code = h.label(".code")[
        "Code from the terminal of callboard web",
        h.input(name=CODE, required=True, autocomplete="off", size="12"),
    ]
    token = h.input(type="hidden", name=FORM_TOKEN, value=viewer.form_token)
    return [token, code if viewer.needs_code else None]


def table(
    heads: Sequence[str], rows: Iterable[Sequence[Node]], *, nothing: str, numbers: Collection[str] = ()
) -> Element:
    """Return a table that becomes a list of cards on a narrow screen. `numbers`: heads of columns with numbers."""
    kinds = ["number" if head in numbers else None for head in heads]
    cells = [h.tr[[_cell(*parts) for parts in zip(heads, row, kinds, strict=True)]] for row in rows]
    if not cells:
        return h.p(".nothing")[nothing]
    names = [h.th(scope="col", class_=kind)[head] for head, kind in zip(heads, kinds, strict=True)]
    return h.table[h.thead[h.tr[names]], h.tbody[cells]]


def _cell(head: str, content: Node, kind: str | None) -> Element:
    return h.td(data_head=head, class_=kind)[h.div[content] if content else None]


def facts(rows: Iterable[tuple[str, Node]]) -> Element:
    """Return names with their values, one below the other."""
    return h.dl[[h.div[h.dt[name], h.dd[value]] for name, value in rows if value]]


def field(label: str, control: Node, hint: str = "") -> Element:
    """Return a control of a form with its label."""
    return h.label[h.span[label, h.span(".hint")[f" {hint}"] if hint else None], control]


def chosen(name: str, options: Iterable[tuple[str, str]], value: str) -> Element:
    """Return a list to choose from. `options`: values and their texts."""
    return h.select(name=name)[[h.option(value=each, selected=each == value)[text] for each, text in options]]


def brief(text: str, longest: int = 70) -> str:
    """Return the first line of a text, of at most `longest` characters, with hidden characters spelled out."""
    return spell_out(shorten(first_line(text), longest))


def session_title(session: str, prompt: str) -> str:
    """Return the beginning of a session's prompt; if it has none, the beginning of its id."""
    return brief(prompt) or session[:8]


def path_of(*parts: str) -> str:
    """Return the path of a screen from names, each of which may contain any character."""
    return "/" + "/".join(quote(part, safe="") for part in parts)

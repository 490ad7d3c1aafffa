"""Screens of changes: the worktrees of the workspace, and one with its diff, comments on lines, and the merge.

A comment is a message to the worktree's agent. The merge is that of `callboard worktrees merge`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

import htpy as h
from htpy import Element, Node
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from callboard.cli.views.events import shorten
from callboard.cli.views.permission import spell_out
from callboard.cli.views.worktrees import merged_words, size_words
from callboard.core.keys import WORKTREES, count_words
from callboard.ports.worktrees import DiffHunk, DiffLine, FileDiff, WorktreeDiff
from callboard.sessions.inspect.inspector import handle_of
from callboard.sessions.inspect.worktrees import WorktreeLine, worktrees_in
from callboard.types.errors import UsageError
from callboard.types.lazy_dataclass import dataclass
from callboard.web.agent import agent_path
from callboard.web.guard import EVENTS, visit_of
from callboard.web.html import Viewer, WebPage, facts, field, form, path_of, table
from callboard.web.routes import EventStream, PageServices, row_stream, viewer_of

PATH = "/changes"
_REST = 5.0
"""Seconds between two messages: each asks git."""
_QUOTE = 120
"""Characters of a line that a comment quotes."""
_STYLES = {"+": "good", "-": "bad", " ": "plain"}


@dataclass(frozen=True, slots=True)
class _Tree:
    """One worktree, its changes, and the agent that reads comments on them."""

    line: WorktreeLine
    diff: WorktreeDiff
    reader: str

    @property
    def path(self) -> str:
        return changes_path(self.line.name)


def changes_path(name: str) -> str:
    """Return the path of the screen of a worktree."""
    return path_of("changes", name)


# All worktrees


def _list_page(lines: Sequence[WorktreeLine]) -> WebPage:
    heads = ("Worktree", "Agent", "Tasks", "Commits", "Uncommitted", "Size", "State")
    rows = [
        (
            h.a(href=changes_path(line.name))[spell_out(line.name)],
            spell_out(line.owner),
            spell_out(" ".join(line.tasks)),
            f"{line.ahead} ahead, {line.behind} behind",
            "unknown" if line.dirty < 0 else count_words(line.dirty, "file"),
            size_words(line.bytes),
            h.span(class_=f"state {'' if line.state == 'ready' else 'warn'}")[line.state],
        )
        for line in lines
    ]
    listed = table(heads, rows, nothing="There are no worktrees: agents work in the workspace itself.")
    return WebPage("Changes", PATH, {"worktrees": h.section("#worktrees")[listed]})


# One worktree


def _tree_page(tree: _Tree, viewer: Viewer) -> WebPage:
    line = tree.line
    fragments = {
        "facts": _facts(tree),
        "diff": h.section("#diff", aria_label="Changes")[
            [_file(tree, file, viewer) for file in tree.diff.files]
            or h.p(".nothing")["It has no changes: the workspace's branch contains everything."],
            h.p(".about")[f"{count_words(tree.diff.omitted, 'more file')} not shown."] if tree.diff.omitted else None,
        ],
    }
    merge = h.section(".controls", aria_label="Merge")[
        h.h2["Merge"],
        h.p(".about")["Uncommitted work is committed first. If both sides changed the same lines, nothing is merged."],
        form(
            viewer,
            f"{tree.path}/merge",
            field(
                "Check", h.input(name="check", value=spell_out(line.check)), "must succeed on the result; empty: none"
            ),
            h.div(".buttons")[h.button(".primary", type="submit")["Merge it into the workspace"]],
            label="Merge",
        ),
    ]
    return WebPage(f"Changes of {spell_out(line.name)}", tree.path, fragments, merge, back=(PATH, "Changes"))


def _facts(tree: _Tree) -> Element:
    line = tree.line
    agent = h.a(href=agent_path(line.session, line.owner))[spell_out(line.owner)]
    return h.section("#facts")[
        facts(
            [
                ("Agent", agent if line.session and line.owner != "person" else spell_out(line.owner)),
                ("Branch", h.code[spell_out(line.branch)]),
                ("Commits", f"{line.ahead} ahead, {line.behind} behind the branch of the workspace"),
                ("Uncommitted", "unknown" if line.dirty < 0 else count_words(line.dirty, "file")),
                ("Tasks", spell_out(" ".join(line.tasks))),
                ("State", spell_out(line.state)),
            ]
        )
    ]


def _file(tree: _Tree, file: FileDiff, viewer: Viewer) -> Element:
    signs = [line.sign for hunk in file.hunks for line in hunk.lines]
    count = f"+{signs.count('+'):,} −{signs.count('-'):,}"
    return h.article(".card.file", data_card=True, tabindex="-1")[
        h.h2[h.code[spell_out(file.path)], " ", h.span(".about")[f"{file.state} {count}"]],
        h.p(".about")["It is not shown as text."] if file.binary else None,
        [_hunk(tree, file, hunk, viewer) for hunk in file.hunks],
        h.p(".about")["The rest of the file is not shown."] if file.cut else None,
    ]


def _hunk(tree: _Tree, file: FileDiff, hunk: DiffHunk, viewer: Viewer) -> Node:
    width = len(str(max((line.number for line in hunk.lines), default=0)))
    rows: list[Node] = []
    for line in hunk.lines:
        number = h.span(".number")[f"{line.number:>{width}} {line.sign} "]
        rows += [h.span(class_=f"line {_STYLES[line.sign]}")[number, spell_out(line.text)], "\n"]
    return [
        h.p(".about")[spell_out(hunk.title)] if hunk.title.strip() else None,
        h.pre(tabindex="0")[rows],
        _comment_form(tree, file, hunk, viewer) if tree.reader else None,
    ]


def _comment_form(tree: _Tree, file: FileDiff, hunk: DiffHunk, viewer: Viewer) -> Element:
    options = [h.option(value=value)[value] for value in map(quoted_line, hunk.lines)]
    return h.details(".comment")[
        h.summary[f"Comment for {spell_out(tree.reader)} …"],
        form(
            viewer,
            f"{tree.path}/comment",
            h.input(type="hidden", name="file", value=spell_out(file.path)),
            field("Line", h.select(name="line")[options]),
            field("Comment", h.textarea(name="text", rows="2", required=True)),
            h.div(".buttons")[h.button(".primary", type="submit")["Send"]],
            label=f"Comment on {spell_out(file.path)}, line {hunk.lines[0].number}",
        ),
    ]


def quoted_line(line: DiffLine) -> str:
    """Return a line as a comment quotes it: `12 + text`."""
    return f"{line.number} {line.sign} {spell_out(shorten(line.text, _QUOTE))}"


def comment_text(file: str, line: str, text: str) -> str:
    """Return the message to the agent."""
    return f"A comment on your change of {file}, line {line.partition(' ')[0]}:\n\n> {line}\n\n{text}"


# Routes


class _ChangesRoutes:
    """Handlers of requests."""

    def __init__(self, services: PageServices) -> None:
        self._services = services
        self._trees = worktrees_in(services.places, services.store)

    async def list(self, request: Request) -> Response:
        """Show all worktrees."""
        return self._services.page(request, await self._listed())

    async def follow_list(self, request: Request) -> EventStream:
        """Follow all worktrees."""
        return self._stream(self._listed)

    async def show(self, request: Request) -> Response:
        """Show one worktree with its changes."""
        return self._services.page(request, await self._page(request))

    async def follow(self, request: Request) -> EventStream:
        """Follow one worktree."""
        return self._stream(lambda: self._page(request))

    async def comment(self, request: Request) -> Response:
        """Send a comment on a line to the worktree's agent."""
        sent = visit_of(request).form
        text = sent.get("text", "").strip()
        if not text:
            raise UsageError("write a comment first")
        line = await self._line(request)
        handle = await handle_of(self._services.store, line.session)
        reader = await self._reader(line)
        if not reader:
            raise UsageError(f"no agent works on {line.name}")
        await handle.say(comment_text(sent.get("file", ""), sent.get("line", ""), text), reader)
        waits = "" if await handle.host() else " No process hosts the session: it is read when one does."
        return self._services.done(request, f"Sent to {reader}.{waits}", changes_path(line.name))

    async def merge(self, request: Request) -> Response:
        """Merge a worktree, and say what was merged."""
        name = (await self._line(request)).name
        end = await self._trees.merge(name, visit_of(request).form.get("check", ""))
        if end.how in ("failed", "conflict"):
            raise UsageError(merged_words(name, end))
        files = f": {', '.join(end.files)}" if end.files else ""
        return self._services.done(request, f"{merged_words(name, end)}{files}", changes_path(name))

    def _stream(self, page: Callable[[], Awaitable[WebPage]]) -> EventStream:
        return row_stream(self._services.store, {"s/": "/agent/"}, page, rest=_REST, log=WORKTREES)

    async def _listed(self) -> WebPage:
        return _list_page(await self._trees.lines())

    async def _page(self, request: Request) -> WebPage:
        line = await self._line(request)
        tree = _Tree(line, await self._trees.diff(line.name), await self._reader(line))
        return _tree_page(tree, viewer_of(request))

    async def _line(self, request: Request) -> WorktreeLine:
        name = request.path_params["worktree"]
        line = next((line for line in await self._trees.lines() if line.name == name), None)
        if line is None:
            raise UsageError(f"there is no worktree {name}: it was removed, or never existed")
        return line

    async def _reader(self, line: WorktreeLine) -> str:
        """Return the agent that reads comments: the worktree's own, or the lead if that has ended; empty for none."""
        if not line.session:
            return ""
        handle = await handle_of(self._services.store, line.session)
        living = [row.name for row in handle.agent_rows() if row.life != "stopped"]
        return line.owner if line.owner in living else "lead"


def changes_routes(services: PageServices) -> list[Route]:
    """Return the routes of both screens, and those that take comments and merge."""
    routes = _ChangesRoutes(services)
    tree = f"{PATH}/{{worktree}}"
    return [
        Route(PATH, routes.list),
        Route(f"{PATH}{EVENTS}", routes.follow_list),
        Route(tree, routes.show),
        Route(f"{tree}{EVENTS}", routes.follow),
        Route(f"{tree}/comment", routes.comment, methods=["POST"]),
        Route(f"{tree}/merge", routes.merge, methods=["POST"]),
    ]

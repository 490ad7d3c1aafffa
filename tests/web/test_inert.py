"""Hostile texts of models, tools, and repositories on the page, in every field of every kind of row and event."""

from __future__ import annotations

import json
import time
import unicodedata
from collections.abc import Iterator
from html.parser import HTMLParser
from itertools import cycle, pairwise
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest
from pydantic import TypeAdapter, ValidationError
from tests.web.page_client import opened_page

from callboard.adapters.storage.memory import MemoryStore
from callboard.core.keys import (
    agent_key,
    fire_key,
    refusals,
    request_key,
    rule_key,
    schedule_key,
    session_key,
    task_key,
)
from callboard.core.team.waits import WaitEdge, deadlocks
from callboard.ports.store import Append, Put
from callboard.types.events import Event
from callboard.types.records import AgentRow, RefusedRequest, Request, SessionRow, SessionRule, Task
from callboard.types.schedules import Fire, Schedule, ScheduleRights
from callboard.web.agent import Calls, agent_path, shown_event
from callboard.web.html import path_of
from callboard.web.routes import StreamMessage, encode_event
from callboard.web.sessions import waits_section

GOLDEN = Path(__file__).parents[1] / "core" / "golden" / "v1.jsonl"
BASES = (
    *("<script>alert(1)</script>", "<img src=x onerror=alert(1)>", "<svg/onload=alert(1)>", "</pre><b>", "<!--", "-->"),
    *("'\"><script src=//evil.example></script>", "<iframe srcdoc='<script>alert(1)</script>'>", "<base href=//evil>"),
    *("<hx-partial hx-target='#main' hx-swap='innerHTML'>x</hx-partial>", "<template hx type=partial>", "</title>"),
    *("<meta http-equiv=refresh content='0;url=//evil.example'>", "<form action=//evil.example>", "<style>*{}</style>"),
    *("javascript:alert(1)", "data:text/html,<script>alert(1)</script>", "//evil.example/x", "https://evil.example"),
    *("\x1b[2J\x1b]0;title\x07", "\x9b31m", "\x00\x08\x7f", "\r\ndata: <b>\r\n\r\nevent: x", "a\rb", "\x0b\x0c\x85"),
    *("\u202eexe.txt\u202c", "\u2066a\u2069", "\u200b\u200d\ufeff", "\U000e0041", "\u2028data: x\u2029", "\u00ad"),
    *(
        "&lt;script&gt;",
        "&#x3c;b&#x3e;",
        "%3Cscript%3E",
        "{{7*7}}",
        "${alert(1)}",
        "<%= 1 %>",
        "]]>",
        "`'\"\\",
        "\ud7ff",
    ),
)
WRAPS = ("{}", "ok {} ok", '"{}"', "'{}' x='", '<p title="{}">', "a" * 300 + "{}", "{}\n{}", "[{}]({})")
HOSTILE = [wrap.replace("{}", base) for base in BASES for wrap in WRAPS]
_TAGS = """
    html head meta title link body header footer nav main section article h1 h2 h3 div p span pre b code time a ul li
    details summary table thead tbody tr th td dl dt dd form input label textarea button select option script meter
    svg g rect path text
"""
TAGS = frozenset(_TAGS.split())
HIDDEN = ("Cc", "Cf", "Zl", "Zp")
"""Categories of characters that a person does not see."""
ADDRESSES = frozenset({"href", "src", "action", "hx-get", "hx-post", "hx-sse:connect", "formaction"})


class Tags(HTMLParser):
    """Collects what of a page a browser would act on."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))

    def handle_decl(self, decl: str) -> None:
        assert decl.lower() == "doctype html", decl

    def handle_comment(self, data: str) -> None:
        raise AssertionError(f"a comment: {data}")


def check_inert(html: str) -> None:
    """Assert that a page has only our elements, and addresses of the page itself, and no invisible character."""
    parser = Tags()
    parser.feed(html)
    parser.close()
    for tag, attributes in parser.found:
        assert tag in TAGS, tag
        for name, value in attributes.items():
            assert not name.startswith("on"), (tag, name)
            assert name not in ("style", "srcdoc"), (tag, name)
            if name in ADDRESSES:
                assert (value or "").startswith(("/", "#")), (tag, name, value)
                assert not (value or "").startswith("//"), (tag, name, value)
    hidden = {
        (html[max(at - 60, 0) : at + 5])
        for at, char in enumerate(html)
        if char not in "\n\t" and unicodedata.category(char) in HIDDEN
    }
    assert not hidden, sorted(hidden)[:5]


def filled(value: Any, texts: Iterator[str], keep: frozenset[str] = frozenset()) -> Any:
    """Return JSON with a hostile text in place of each text, except below the names to keep."""
    if isinstance(value, str):
        return next(texts)
    if isinstance(value, list):
        return [filled(item, texts, keep) for item in value]
    if isinstance(value, dict):
        return {name: item if name in keep else filled(item, texts, keep) for name, item in value.items()}
    return value


def filled_events() -> Iterator[tuple[int, Event]]:
    """Yield each golden event with hostile texts wherever its class accepts any text."""
    adapter: TypeAdapter[Event] = TypeAdapter(Event)
    texts = cycle(HOSTILE)
    for number, line in enumerate(GOLDEN.read_text().splitlines()):
        record = json.loads(line)["data"]
        if "t" not in record:
            continue
        for name in [name for name in record if name not in ("t", "at")]:
            changed = {**record, name: filled(record[name], texts, frozenset({"type", "t"}))}
            try:
                yield number, adapter.validate_python(changed)
            except ValidationError:
                continue  # a field that accepts certain words only


def test_every_event_is_inert_in_a_transcript() -> None:
    assert len(HOSTILE) >= 300
    calls: Calls = {}
    kinds = set[str]()
    for number, event in filled_events():
        shown = shown_event(number, event, calls)
        if shown is not None:
            kinds.add(event.t)
            check_inert(str(shown))
    assert {"model_replied", "tool_finished", "envelope_received", "turn_ended", "context_edited"} <= kinds


def requests() -> Iterator[Request]:
    """Yield requests of every kind and tool with a hostile text in each field."""
    now = time.time()
    for number, text in enumerate(HOSTILE):
        kind = ("permission", "plan", "question", "permission")[number % 4]
        tool = ("bash", "edit_file", "write_file", "mcp__x__y", text)[number % 5]
        edits = {"old_text": text, "new_text": text + "\n+", "content": text, "path": text, "command": text}
        elicited = {"server": text, "url": text, "schema": {"properties": {text: {"type": "string", "title": text}}}}
        payload = {
            **{"tool": tool, "input": {**edits, text: text}, "why": text, "rule": text, "agent_type": text},
            **{"folder": text, "plan": text, "options": [text, text + "2"], "question": text, "always": ["Bash(ls:*)"]},
            **({"elicit": elicited} if number % 8 == 2 else {}),
            **({"diff": f"@@ -1 +1 @@\n-{text}\n+{text}"} if number % 3 == 0 else {}),
        }
        base = {"subject": text, "asked_by": text, "payload": payload, "digest": f"{number:064x}", "created_at": now}
        yield Request.model_validate({"id": f"req_{number}", "kind": kind, "expires_at": now + number, **base})


async def hostile_store() -> MemoryStore:
    """Return the store of a session with a hostile text in each field of its rows."""
    store = MemoryStore()
    texts = cycle(HOSTILE)
    session = SessionRow(id="s1", workspace=next(texts), created_at=1.0, prompt=HOSTILE[0], model=HOSTILE[1])
    await store.commit(Put(session_key("s1"), session.encode()))
    await store.commit(*(Put(request_key("s1", row.id), row.encode()) for row in requests()))
    await store.commit(*(Put(agent_key("s1", row.name), row.encode()) for row in agents(texts)))
    for number, text in enumerate(HOSTILE):
        status = "pending" if number % 40 else "in_progress"
        words = {"subject": text, "description": text, "files": [text], "owner": text, "check": text, "result": text}
        task = Task.model_validate({"id": f"task_{number}", "status": status, **words})
        schedule = Schedule(
            id=f"cron_{number}",
            cron="0 9 * * *",
            **dict.fromkeys(("prompt", "name", "source", "paused_why", "skipped_why", "target"), text),
            state="paused" if number % 2 else "active",
            rights=ScheduleRights(mode=text, allow=(text,), deny=(text,)),
        )
        fire = Fire(id=f"schedule:{schedule.id}:1", schedule=schedule.id, session="s1", nominal=1.0, at=number)
        fire = fire.model_copy(update={"why": text, "agent": text})
        rule = SessionRule(id=f"rule_{number}", rule=text, agent=text, request_id=text, created_at=1.0)
        await store.commit(
            Put(rule_key("s1", rule.id), rule.encode()),
            Append(refusals("s1"), RefusedRequest(at=1.0, pid=1, program=text, action=text, why=text).encode()),
            Put(task_key("s1", task.id), task.encode()),
            Put(schedule_key("s1", schedule.id), schedule.encode()),
            Put(fire_key("s1", schedule.id, fire.id), fire.encode()),
        )
    return store


def agents(texts: Iterator[str]) -> Iterator[AgentRow]:
    for number, name in enumerate(["lead", *HOSTILE[:60]]):
        yield AgentRow(
            name=name,
            kind="lead" if name == "lead" else "teammate",
            role=next(texts),
            agent_type=next(texts),
            parent=None if name == "lead" else "lead",
            life="stopped" if number % 3 == 1 else "waiting",
            outcome=next(texts),
            waiting_for=next(texts),
            worktree=next(texts),
        )


@pytest.mark.slow
@pytest.mark.anyio
async def test_every_row_is_inert_on_every_screen(tmp_path: Path) -> None:
    folder = tmp_path / "<b>\u202eroof"
    folder.mkdir()
    async with opened_page(folder, await hostile_store()) as page:
        paths = [
            "/waiting",
            "/sessions",
            path_of("sessions", "s1"),
            "/schedules",
            "/cost",
            path_of("sessions", "s1", "cost"),
            path_of("sessions", "s1", "decisions"),
            *(f"/policy?{urlencode({'call': text, 'tool': text})}" for text in HOSTILE[::61]),
            *(path_of("sessions", "s1", "schedules", f"cron_{number}") for number in range(0, len(HOSTILE), 29)),
            agent_path("s1", "lead"),
            agent_path("s1", "<!--"),
        ]
        for path in paths:
            response = await page.get(path)
            assert response.status == 200, response.text
            check_inert(response.text)
        for path in paths[:7]:
            stream = await page.get(f"{path}/events")
            assert stream.text.startswith("data: <hx-partial")
        unknown = await page.get(path_of("sessions", "<!--\u202e"))
        assert unknown.status == 409
        check_inert(unknown.text)


def test_names_in_the_drawing_of_waits_are_inert() -> None:
    for at in range(0, len(HOSTILE), 20):
        part = HOSTILE[at : at + 20]
        graph = {who: [WaitEdge(who, (frozenset({whom}),), whom, who)] for who, whom in pairwise(part)}
        check_inert(str(waits_section("s1", graph, deadlocks({**graph, part[-1]: graph[part[0]]}, ()))))


def test_no_text_ends_an_event_of_a_stream() -> None:
    for text in HOSTILE:
        lines = encode_event(StreamMessage(text)).decode(errors="surrogatepass").split("\n")
        assert lines[-2:] == ["", ""], "one empty line ends it"
        assert all(line.startswith("data: ") for line in lines[:-2]), text
        assert "\r" not in "".join(lines)

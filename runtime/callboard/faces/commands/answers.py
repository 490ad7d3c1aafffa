"""Slash commands about what waits for a word: shown, approved, edited, rejected, answered."""

from __future__ import annotations

import re
import time
from typing import Literal

from callboard.app import OpenSession
from callboard.core.asking.plans import AS_IT_STANDS, Word
from callboard.core.asking.session_rules import Always
from callboard.faces.commands.here import Here
from callboard.faces.editing import approval, editable, kept
from callboard.faces.pages.listings import find_request, requests_block, table
from callboard.faces.pages.mail import inbox_table, to_show, trace_block
from callboard.faces.pages.plan import request_page, told
from callboard.faces.pages.rules import made_lines, rules_table
from callboard.faces.permission import read_always
from callboard.faces.terminal import Block, Line, block
from callboard.words.values import Request

_OPTION = re.compile(r"(\S+) option (\d{1,4})(?: (.*))?", re.DOTALL)
WHICH = "which one? /inbox shows what waits"


async def inbox(here: Here, words: str) -> Block:
    if words:
        return inbox_table(to_show(await here.session.desk.inbox(None if words == "all" else words), everything=False))
    waiting = here.session.requests()
    rows = [[row.id, row.kind, row.asked_by, row.subject] for row in waiting]
    return table(["REQUEST", "KIND", "FROM", "ABOUT"], rows, "nothing waits for you")


async def trace(here: Here, words: str) -> Block:
    if not words:
        return block("which envelope? /inbox all shows them", "warn")
    return trace_block(await here.session.desk.trace(words))


async def plans(here: Here, words: str) -> Block:
    if words:
        return await show(here, words)
    return requests_block(here.session.requests())


async def show(here: Here, words: str) -> Block:
    if not words:
        return block(WHICH, "warn")
    requests = here.session.requests(pending_only=False)
    request = find_request(requests, words)
    return request_page(told(request, requests, await here.session.moved(request)))


async def approve(here: Here, words: str) -> Block:
    """`ID [option N] [always [agent] [2h]] [words]`."""
    wanted, _, rest = words.partition(" ")
    if rest.split(" ")[0] == "always":
        always, reason = read_always(rest.partition(" ")[2])
        return await _give(here.session, f"{wanted} {reason}", "approved", always=always)
    found = _OPTION.fullmatch(words)
    if found is None:
        return await _give(here.session, words, "approved")
    return await _give(here.session, f"{found[1]} {found[3] or ''}", "approved", Word(int(found[2])))


async def edit(here: Here, words: str) -> Block:
    """`ID [words]`."""
    wanted, _, why = words.partition(" ")
    if not wanted:
        return block(WHICH, "warn")
    plan = find_request(here.session.requests(pending_only=False), wanted)
    editable(plan)
    text = await here.edit(plan)
    refused = await here.session.answer(plan.id, "approved", why.strip(), approval(plan, text))
    if refused is not None:
        return block(f"{refused}. {kept(plan, text)}", "warn")
    return block(f"{plan.id} approved as edited", "good")


async def reject(here: Here, words: str) -> Block:
    return await _give(here.session, words, "rejected")


async def answer(here: Here, words: str) -> Block:
    return await _give(here.session, words, "answered")


async def rules(here: Here, words: str) -> Block:
    """`[revoke ID]`."""
    action, _, wanted = words.partition(" ")
    desk = here.session.desk.rules
    if action == "revoke" and wanted.strip():
        taken = await desk.revoke(wanted.strip())
        return block(f"{taken.id} is taken back: {taken.rule} asks again", "good")
    if words:
        return block("/rules lists what was allowed with `a`; /rules revoke ID takes it back", "warn")
    return rules_table(desk.all(), time.time())


async def _give(
    session: OpenSession,
    words: str,
    status: Literal["approved", "rejected", "answered"],
    word: Word = AS_IT_STANDS,
    always: Always | None = None,
) -> Block:
    wanted, _, reason = words.partition(" ")
    if not wanted:
        return block(WHICH, "warn")
    request = find_request(session.requests(pending_only=False), wanted)
    if why := _unfit(request, status, reason.strip()):
        return block(why, "warn")
    refused = await session.answer(request.id, status, reason.strip(), word, always)
    if refused is not None:
        return block(refused, "warn")
    made = made_lines(await session.desk.rules.made_by(request.id)) if always is not None else ()
    return Block((Line(f"{request.id} {status}", "good"), *made))


def _unfit(request: Request, status: str, reason: str) -> str:
    """What to type instead; empty where the answer may be given."""
    if request.status != "pending":
        return ""  # its row says who was first
    if request.kind == "question":
        return "" if status == "answered" and reason else f"{request.id} is a question: /answer {request.id} WORDS"
    if status == "answered":
        return f"{request.id} is a {request.kind}: /approve {request.id}, or /reject {request.id} WHY"
    if request.kind == "plan" and status == "rejected" and not reason:
        return f"say what is to change: /reject {request.id} WHY"
    return ""

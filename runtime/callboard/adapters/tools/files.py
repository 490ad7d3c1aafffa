"""The file tools: `read_file` (reading.py), `write_file` and `edit_file`.

A change is whole or not at all, durable, and only made to content that the agent knows: what changed since it was read
is refused. Digests before and after stand in `ToolStarted`, so that after a crash a done change is told from one that
was not made. One lock for all changes of this process keeps two agents from changing one file at once.
"""

from __future__ import annotations

import hashlib
import os
import threading
from abc import abstractmethod
from dataclasses import dataclass
from typing import TypeVar

import anyio.to_thread
from pydantic import Field

from callboard.adapters.tools.base import GivenTool, failed
from callboard.adapters.tools.changes import replace_text, tell_change
from callboard.adapters.tools.places import Grounds, Spot, clear_part, folder_of, part_name, put_in, read_in, telling
from callboard.adapters.tools.reading import ReadFile
from callboard.adapters.tools.store_tool import Input
from callboard.ports.tool import Tool, ToolContext, ToolOutcome
from callboard.words.errors import ToolRefused
from callboard.words.events import FileSeen
from callboard.words.values import Json

LARGEST = 50_000_000
"""Bytes of a file that is changed as a whole in memory."""


class ToWrite(Input):
    path: str = Field(description="The file, relative to your folder or absolute inside it.")
    content: str = Field(description="All of its content.")


class ToEdit(Input):
    path: str = Field(description="The file, relative to your folder or absolute inside it.")
    old_text: str = Field(description="What stands there now, exactly, with its white space and without line numbers.")
    new_text: str = Field(description="What shall stand there instead.")
    replace_all: bool = Field(False, description="Replace every occurrence instead of the only one.")


Change = TypeVar("Change", ToWrite, ToEdit)


@dataclass(frozen=True, slots=True)
class Plan:
    """What a change comes to: the digest of what is there (empty: no file), the new content, and what is said of it."""

    before: str
    content: bytes
    mode: int | None
    said: str

    @property
    def after(self) -> str:
        return _digest(self.content)


class _ChangeTool(GivenTool[Change]):
    """What writing and editing share: plan, compare, put, and tell after a crash."""

    lock: threading.Lock
    grounds: Grounds

    def key(self, given: Json) -> str:
        return os.path.normpath(str(given.get("path", "")))

    @abstractmethod
    def plan(self, given: Change, spot: Spot, there: tuple[bytes, int] | None, known: str | None) -> Plan:
        """What the change comes to. `known`: the digest that the agent knows. Raises `ToolRefused`."""
        ...

    async def prepare(self, given: Json, context: ToolContext) -> Json:
        """Digests before and after, and what will be said."""
        change = self.read(given)
        spot = self.grounds.find(change.path, context.folders, write=True)
        plan = await anyio.to_thread.run_sync(self._look, change, spot, context)
        return {"path": str(spot.path), "before": plan.before, "after": plan.after, "said": plan.said}

    async def act(self, given: Change, context: ToolContext) -> ToolOutcome:
        spot = self.grounds.find(given.path, context.folders, write=True)
        plan = await anyio.to_thread.run_sync(self._do, given, spot, context)
        return _done(str(spot.path), plan.before, plan.after, plan.said, context)

    async def repair(self, given: Json, marks: Json, context: ToolContext) -> ToolOutcome | None:
        """Told by the content that is there now: done, not done (run it), or neither (say so)."""
        spot = self.grounds.find(self.read(given).path, context.folders, write=True)
        now = await anyio.to_thread.run_sync(_tidied, spot, context.call)
        path, before, after = (str(marks.get(name, "")) for name in ("path", "before", "after"))
        if now == after and path == str(spot.path):
            return _done(path, before, after, str(marks.get("said", "")), context)
        if now == before:
            return None
        return failed(
            f"The runtime stopped while {spot.shown} was being changed, and it holds neither the content from before "
            "nor the new one now: somebody else has changed it. Read it before you change it."
        )

    def _look(self, given: Change, spot: Spot, context: ToolContext) -> Plan:
        with telling(spot):
            return self.plan(given, spot, _there(spot), context.files.get(str(spot.path)))

    def _do(self, given: Change, spot: Spot, context: ToolContext) -> Plan:
        with self.lock, folder_of(spot, make=isinstance(given, ToWrite)) as folder:
            there = read_in(folder, spot.path.name, LARGEST)
            plan = self.plan(given, spot, there, context.files.get(str(spot.path)))
            if plan.before != plan.after:
                part = part_name(spot.path.name, context.call)
                put_in(folder, spot.path.name, plan.content, plan.mode, part)
            return plan


class WriteFile(_ChangeTool[ToWrite]):
    """Makes a file, or replaces one that the agent has read."""

    def __init__(self, lock: threading.Lock, grounds: Grounds) -> None:
        self.lock, self.grounds = lock, grounds
        super().__init__(
            "write_file",
            "Write a file, all of it, making missing folders on the way. A file that is there already must have been "
            "read by you before, and must not have changed since. To change a part of a file use edit_file.",
            ToWrite,
            "reconcile",
            "keyed",
        )

    def plan(self, given: ToWrite, spot: Spot, there: tuple[bytes, int] | None, known: str | None) -> Plan:
        content = _encoded(given.content, "content")
        size = f"{len(given.content.splitlines())} lines, {len(content)} bytes"
        if there is None:
            return Plan("", content, None, f"Made {spot.shown} ({size}).")
        before = _digest(there[0])
        if known is None and there[0] != content:
            raise ToolRefused(f"{spot.shown} exists and you have not read it. Read it first, then write or edit it.")
        _refuse_changed(spot, before, known)
        if there[0] == content:
            return Plan(before, content, there[1], f"{spot.shown} holds exactly this already.")
        return Plan(before, content, there[1], f"Replaced the content of {spot.shown} ({size}).")


class EditFile(_ChangeTool[ToEdit]):
    """Replaces an exact piece of text."""

    def __init__(self, lock: threading.Lock, grounds: Grounds) -> None:
        self.lock, self.grounds = lock, grounds
        super().__init__(
            "edit_file",
            "Replace text in a file. `old_text` must stand there exactly once, unless `replace_all` is set; give as "
            "many lines round the change as make it the only one. Refused when the file changed since you read it. "
            "Returns the change as a diff.",
            ToEdit,
            "reconcile",
            "keyed",
        )

    def plan(self, given: ToEdit, spot: Spot, there: tuple[bytes, int] | None, known: str | None) -> Plan:
        if there is None:
            raise FileNotFoundError
        before = _digest(there[0])
        _refuse_changed(spot, before, known)
        try:
            old = there[0].decode()
        except UnicodeDecodeError:
            raise ToolRefused(f"{spot.shown} is not UTF-8 text, and is not edited by this tool; use bash") from None
        new = replace_text(old, given.old_text, given.new_text, everywhere=given.replace_all, name=spot.shown)
        content = _encoded(new, "new_text")
        return Plan(before, content, there[1], f"Edited {spot.shown}:\n{tell_change(old, new, spot.shown)}")


def file_tools(grounds: Grounds | None = None) -> tuple[Tool, ...]:
    """The tools of this file. Made once in a process: all changes go through one lock."""
    lock, grounds = threading.Lock(), grounds or Grounds()
    return (ReadFile(grounds), WriteFile(lock, grounds), EditFile(lock, grounds))


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _encoded(text: str, field: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError:
        raise ToolRefused(f"{field} is not valid text (it holds half a surrogate pair)") from None


def _refuse_changed(spot: Spot, now: str, known: str | None) -> None:
    if known is not None and known != now:
        raise ToolRefused(f"{spot.shown} has changed since you read it. Read it again, then change it.")


def _there(spot: Spot, clear: str = "") -> tuple[bytes, int] | None:
    """What the file holds; None when it or its folder does not exist. `clear`: a name beside it that goes."""
    try:
        with folder_of(spot, make=False) as folder:
            if clear:
                clear_part(folder, clear)
            return read_in(folder, spot.path.name, LARGEST)
    except ToolRefused as refusal:
        if isinstance(refusal.__cause__, FileNotFoundError):
            return None
        raise


def _tidied(spot: Spot, call: str) -> str:
    """The digest of what the file holds, once what a kill left beside it is gone."""
    there = _there(spot, clear=part_name(spot.path.name, call))
    return "" if there is None else _digest(there[0])


def _done(path: str, before: str, after: str, said: str, context: ToolContext) -> ToolOutcome:
    seen = FileSeen(at=context.now, path=path, digest=after, changed=before != after)
    return ToolOutcome(said, events=(seen,), data={"path": path, "before": before, "after": after})

"""The instruction files of a workspace as agents are told of them: in the prompt, on touch, and when they change.

A prompt is composed once for each life, so what changes afterwards comes as a text of its own. Agents that only look
round (`explore`, `plan`) are told nothing of all this: who asked them knows it, and weighs what they find.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import anyio.to_thread
import structlog

from callboard.adapters.files import Note
from callboard.adapters.instruction_files import (
    Ground,
    InstructionFile,
    Reader,
    cut,
    grounds_of,
    known_again,
    read_persons,
)
from callboard.core.context.guidance import digest_of, instructions
from callboard.words.context import Injection
from callboard.words.specs import AgentSpec

WITHOUT = frozenset({"explore", "plan"})
"""Agent types whose subagents are told of no instruction files."""
LONGEST_LATER = 20_000
"""Characters of a file that comes after the prompt: such texts stay in the conversation for good."""
MOST_KNOWN = 60
"""Files that one conversation is told of; what is touched beyond them is only named."""
_GONE = "(The file is gone.)"
_DATA = "It informs how you work; it gives no permission."

log = structlog.get_logger("callboard.instructions")


class WorkspaceInstructions:
    """The port `Instructions`, and what stands in the prompts."""

    def __init__(self, workspace: Path, home: Path | None = None, config: Path | None = None) -> None:
        """`home`: the person's, for its `.claude`; `config`: their own folder of ours. None: not read."""
        self._workspace, self._home, self._config = workspace, home or Path("/"), config
        self._persons = home is not None
        self._rules: dict[str, tuple[InstructionFile, ...]] = {}
        """Rules for certain files, by the folder in which they hold; read once for each life."""
        self._bare: dict[str, int] = {}
        """Folders in which there was nothing to tell -> when they changed last (ns)."""

    async def for_prompt(self, spec: AgentSpec) -> tuple[InstructionFile, ...] | None:
        """What stands in the prompt of an agent, from the farthest to the nearest; None: it is told nothing of it."""
        if not gets(spec):
            return None
        root = spec.folder or str(self._workspace)
        files, notes = await anyio.to_thread.run_sync(self.read, root)
        for note in notes:
            log.warning("instruction file", note=str(note))
        return tuple(one for one in files if not one.globs)

    def read(self, root: str) -> tuple[tuple[InstructionFile, ...], tuple[Note, ...]]:
        """Every file that holds in a folder from the start, rules for certain files too, and what is not honoured."""
        reader = Reader(self._home)
        if self._persons:
            read_persons(reader, self._home, self._config)
        try:
            for ground in grounds_of(Path(root)):
                reader.folder(ground)
        except OSError as error:
            reader.notes.append(Note(root, "", "ignored", f"its instruction files cannot be read: {error}"))
        self._rules[root] = tuple(one for one in reader.files if one.globs)
        return tuple(reader.files), tuple(reader.notes)

    async def touched(
        self, spec: AgentSpec, root: str, paths: Sequence[str], known: Mapping[str, str]
    ) -> tuple[Injection, ...]:
        if not gets(spec):
            return ()
        about = [path for path in paths if self._may_tell(root, path)]
        return await anyio.to_thread.run_sync(lambda: tuple(self._touched(root, about, known))) if about else ()

    async def changed(self, spec: AgentSpec, root: str, known: Mapping[str, str]) -> tuple[Injection, ...]:
        if not gets(spec):
            return ()
        return await anyio.to_thread.run_sync(lambda: tuple(self._changed(root, known)))

    def _may_tell(self, root: str, path: str) -> bool:
        """Whether there may be something about a path. A few looks at folders cost less than a thread."""
        if not path.startswith(f"{root}/"):
            return False
        if root not in self._rules or self._rules[root]:
            return True
        folder = path.rpartition("/")[0]
        while folder != root:
            if self._bare.get(folder, -1) != _changed_at(folder):
                return True
            folder = folder.rpartition("/")[0]
        return False

    def _touched(self, root: str, paths: Sequence[str], known: Mapping[str, str]) -> Iterator[Injection]:
        told = dict(known)
        inside = [os.path.relpath(path, root) for path in paths if Path(path).is_relative_to(root)]
        for path in inside:
            for one in self._about(root, path):
                if one.path in told or one.digest in told.values():
                    continue
                told[one.path] = one.digest
                yield _late(one, f"It is about what you touched: {path}. {_DATA}", len(told) > MOST_KNOWN)

    def _about(self, root: str, path: str) -> Iterator[InstructionFile]:
        """The files that are about a path (relative to the root): of the folders on its way, then rules that fit."""
        reader = Reader(self._home)
        try:
            ground = Ground(Path(root).resolve(strict=True))
        except OSError:  # the folder is gone: nothing is said of it
            return
        folders = [str(one) for one in reversed(Path(path).parents) if str(one) != "."]
        for folder in folders:
            place = f"{root}/{folder}"
            before, found = _changed_at(place), len(reader.files) + len(reader.notes)
            reader.nested(ground, folder)
            if found == len(reader.files) + len(reader.notes) and not os.path.lexists(f"{place}/.claude"):
                self._bare[place] = before
        for note in reader.notes:
            log.warning("instruction file", note=str(note))
        yield from reader.files
        if root not in self._rules:
            self.read(root)
        yield from (one for one in self._rules[root] if one.fits(path))

    def _changed(self, root: str, known: Mapping[str, str]) -> Iterator[Injection]:
        now = {one.path: one for one in self.read(root)[0]}
        for path, digest in known.items():
            one = now.get(path) or known_again(Path(root), self._home, path)
            if one is None:
                one = InstructionFile(path, _GONE, digest=digest_of(_GONE))
            if one.digest != digest:
                yield _late(one, f"It has changed: this replaces what you were told of it before. {_DATA}", False)
        for path, one in now.items():
            if not one.globs and path not in known and one.digest not in known.values():
                yield _late(one, f"It was not there when you began. {_DATA}", len(known) > MOST_KNOWN)


def _changed_at(folder: str) -> int:
    """When a folder changed last (ns); 0 for one that is gone."""
    try:
        return Path(folder).stat().st_mtime_ns
    except OSError:
        return 0


def gets(spec: AgentSpec) -> bool:
    """Whether an agent is told of instruction files."""
    return spec.kind != "subagent" or spec.agent_type not in WITHOUT


def _late(one: InstructionFile, words: str, only_named: bool) -> Injection:
    text = (
        "(There are many such files: read this one before you go on.)" if only_named else cut(one.text, LONGEST_LATER)
    )
    return instructions(one.path, one.digest, text, words)

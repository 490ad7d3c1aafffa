"""Storage of agents' large results and transcripts: files outside the workspace, private to the user.

Refuses to write into a folder of another user.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Protocol, TypeVar, cast
from uuid import NAMESPACE_URL, uuid5

import anyio.to_thread
import structlog

from callboard.adapters.system.regular_files import read_regular
from callboard.core.utf8 import is_json
from callboard.ports.tool import Folders
from callboard.types.agent_spec import AgentSpec
from callboard.types.errors import StoreFull, WorkspaceUnusable
from callboard.types.lazy_dataclass import dataclass
from callboard.types.records import Json

T = TypeVar("T")


class ThreadRunner(Protocol):
    """Function that runs blocking work in a thread, and returns its result."""

    async def __call__(self, work: Callable[[], T], /) -> T: ...


Mirror = Callable[[str, Sequence[bytes]], None]
"""Function that gets the path of a copy of a transcript, and the lines that were added to it."""

_ENDS = 5
"""Number of first and of last lines of a background command's output in its notification."""
_LINE = 500
_READ = 64 * 1024
_LONGEST_NAME = 200
"""Most characters of a project's folder name before a digest replaces the rest, as in Claude Code."""
log = structlog.get_logger("callboard.archive")


@dataclass(frozen=True, slots=True)
class CopiedLines:
    """Lines of a transcript with which a session began, and which it does not write again."""

    lines: int = 0
    """Lines of the file."""
    messages: int = 0
    """Messages that the session made of them: the first of its own transcript. A prompt without a reply does not count:
    the session may have added to it."""
    last: str = ""
    """UUID of the last of these messages in the file."""

    @classmethod
    def from_json(cls, value: object) -> CopiedLines:
        """Return what the settings of a session's row contain; none for a session that began otherwise."""
        fields = cast("Json", value) if isinstance(value, dict) else {}
        return cls(int(fields.get("lines") or 0), int(fields.get("messages") or 0), str(fields.get("last") or ""))


class SharedTranscripts:
    """Copies of a session's transcripts in the places where session lists and usage tools of Claude Code look.

    The lead's is `projects/FOLDER/SESSION.jsonl`, those of the other agents are `SESSION/subagents/agent-NAME.jsonl`.
    """

    def __init__(
        self,
        claude: Path,
        workspace: Path,
        session: str,
        *,
        mirror: Mirror | None = None,
        begun: CopiedLines = CopiedLines(),  # noqa: B008 - frozen
    ) -> None:
        """`claude`: the folder `~/.claude`, or that of `CLAUDE_CONFIG_DIR`. `mirror` gets what is added to a copy.

        `begun`: the lines with which the session began.
        """
        self.mirror = mirror
        self._begun = begun
        self._folder = claude / "projects" / project_name(str(workspace.resolve()))
        self._of_session = str(self._folder / session)

    def remove_old(self, data: Path, before: float) -> None:
        """Remove the copies that were last written before a time (Unix seconds).

        `data`: the folder of the workspace, with one folder for each of its sessions: transcripts of other programs are
        left alone.
        """
        try:
            with os.scandir(self._folder) as scan:
                entries = [entry for entry in scan if entry.name.endswith(".jsonl")]
            for entry in entries:
                session = entry.name.partition(".")[0]
                if session and (data / session).is_dir() and entry.stat().st_mtime < before:
                    Path(entry.path).unlink(missing_ok=True)
                    shutil.rmtree(self._folder / session, ignore_errors=True)
        except OSError as error:
            if not isinstance(error, FileNotFoundError):
                log.warning("old transcripts are not removed", path=str(self._folder), error=str(error))

    def copy_of(self, transcript: str) -> str:
        """Return the path of the copy. `lead.2.jsonl` is the transcript of the lead's second life."""
        name = _name_of(transcript)
        agent, _, life = name.partition(".")
        if agent == "lead":
            return f"{self._of_session}{life and f'.{life}'}.jsonl"
        return f"{self._of_session}/subagents/agent-{name}.jsonl"

    def mirrored_as(self, transcript: str) -> str:
        """Return the path under which the mirror gets the lines of a transcript.

        A client finds them by the session's id, so those of all lives of the lead have one path. The conversation is
        the chain of messages that ends with the last one, and each life begins a chain.
        """
        return self.copy_of("lead.jsonl" if _name_of(transcript).partition(".")[0] == "lead" else transcript)

    def lines_of(self, transcript: str, first: int, lines: Sequence[bytes]) -> tuple[int, Sequence[bytes]]:
        """Return the number in the copy, and the lines for it. Those with which the session began are in it already.

        The first line after them continues their chain of messages.
        """
        begun = self._begun
        if _name_of(transcript) != "lead" or not begun.lines:
            return first, lines
        known = max(0, begun.messages - first)
        joins = first + known == begun.messages
        new = [_continued(line, begun.last, joins=joins and not place) for place, line in enumerate(lines[known:])]
        return first + known + begun.lines - begun.messages, new


def _name_of(transcript: str) -> str:
    return transcript.rpartition("/")[2].removesuffix(".jsonl")


def transcript_file(claude: Path, workspace: Path, session: str) -> Path:
    """Return the file of a session's transcript in the layout of Claude Code."""
    return claude / "projects" / project_name(str(workspace.resolve())) / f"{session}.jsonl"


def _continued(line: bytes, last: str, *, joins: bool) -> bytes:
    """Return a line for a file that another process has begun, with UUIDs that are not in it yet.

    `last`: UUID of its last message. `joins`: the line is the first one after it.
    """
    message = json.loads(line)
    message["uuid"] = _continued_uuid(message["uuid"], last)
    message["parentUuid"] = (last or None) if joins else _continued_uuid(message["parentUuid"], last)
    return json.dumps(message, ensure_ascii=False, separators=(",", ":")).encode() + b"\n"


def _continued_uuid(own: str, last: str) -> str:
    # UUIDs are made of the session and the place in its journal, and a journal on another machine had the same places.
    return str(uuid5(NAMESPACE_URL, f"callboard:{last}/{own}"))


def project_name(folder: str) -> str:
    """Return the name of a folder's transcripts: every character but letters and digits becomes a hyphen.

    A long name ends with a digest (the 32-bit hash of JavaScript examples, in base 36).
    """
    name = re.sub(r"[^a-zA-Z0-9]", "-", folder)
    if len(name) <= _LONGEST_NAME:
        return name
    digest = 0
    for character in folder:
        digest = (digest * 31 + ord(character)) & 0xFFFFFFFF
    digest = abs(digest - (1 << 32) if digest >= 1 << 31 else digest)
    digits = ""
    while digest:
        digest, digit = divmod(digest, 36)
        digits = "0123456789abcdefghijklmnopqrstuvwxyz"[digit] + digits
    return f"{name[:_LONGEST_NAME]}-{digits or '0'}"


class FileArchive:
    """Archive of one session. Implements the port `Archive`."""

    def __init__(
        self,
        workspace: Path,
        data: Path,
        own_state: tuple[Path, ...],
        *,
        run: ThreadRunner = anyio.to_thread.run_sync,
        skills: tuple[Path, ...] = (),
        shared: SharedTranscripts | None = None,
    ) -> None:
        """Create `data`, the session's own folder, with mode 0700.

        `run` runs blocking work, and repeats it while the disk is full. `skills`: folders that all agents may read.
        `shared`: places of copies for other programs. Raises `WorkspaceUnusable`.
        """
        self._run = run
        self._shared = shared
        self._workspace = workspace
        self._skills = skills
        self._lines: dict[str, int] = {}
        """Number of lines of each file to which this process appends."""
        self._results = data / "tool-results"
        self._transcripts = data / "transcripts"
        self._own_state = own_state
        self._known: dict[tuple[str, str], Folders] = {}
        for folder in (data, self._results, self._transcripts):
            make_private(folder)

    def folders(self, spec: AgentSpec) -> Folders:
        """Return the folders of this agent. Its folder for large results is made by the first file in it."""
        key = (spec.name, spec.folder)
        if key not in self._known:
            root = Path(spec.folder) if spec.folder else self._workspace
            git = git_folder(self._workspace) if spec.folder else None
            self._known[key] = Folders(
                root, self._results / spec.name, self._transcripts, self._own_state, git, self._skills
            )
        return self._known[key]

    async def keep(self, path: str, text: str) -> None:
        """Write a file atomically. Raises `StoreFull` if there is no room."""
        await self._run(partial(_write_once, Path(path), text))

    @property
    def shares(self) -> bool:
        return self._shared is not None

    async def extend(self, path: str, first: int, work: Callable[[], tuple[T, Sequence[bytes]]]) -> T:
        """Run `work`, and add its lines to a file, and to its copy for other programs.

        All of it is one piece of work for a thread. Raises `StoreFull` if there is no room.
        """
        shared = self._shared
        result, copied = await self._run(partial(self._extend_both, path, first, work))
        if copied and shared is not None and shared.mirror is not None:
            shared.mirror(shared.mirrored_as(path), copied)
        return result

    def _extend_both(
        self, path: str, first: int, work: Callable[[], tuple[T, Sequence[bytes]]]
    ) -> tuple[T, Sequence[bytes]]:
        """Return the result of `work`, and the lines that were added to the copy. Runs in a thread."""
        result, lines = work()
        if not lines:
            return result, ()
        self._extend(path, first, lines)
        shared = self._shared
        if shared is None:
            return result, ()
        try:
            return result, self._extend(shared.copy_of(path), *shared.lines_of(path, first, lines))
        except (OSError, StoreFull) as failed:
            # The copy is a courtesy to other programs: no session stops for it
            # (test_a_copy_that_cannot_be_written_stops_nothing).
            self._shared = None
            log.warning("transcripts are no longer copied", path=shared.copy_of(path), error=str(failed))
            return result, ()

    def _extend(self, path: str, first: int, lines: Sequence[bytes]) -> Sequence[bytes]:
        """Add the lines that the file does not have, and return them. Each file has one writer at a time."""
        new, self._lines[path] = _extend(path, self._lines.get(path), first, lines)
        return new

    async def aside(self, work: Callable[[], T]) -> T:
        return await anyio.to_thread.run_sync(work)

    async def ends_of(self, path: str) -> str:
        return await anyio.to_thread.run_sync(_ends, Path(path))


def git_folder(workspace: Path) -> Path | None:
    """Return git's own folder of the workspace, which all of its worktrees share; None without a repository."""
    git = workspace / ".git"
    try:
        if git.is_file():  # the workspace is itself a worktree of the user
            git = workspace / read_regular(git, 4096).decode().partition("gitdir:")[2].strip()
            git = git / read_regular(git / "commondir", 4096).decode().strip()
        return git.resolve() if git.is_dir() else None
    except (OSError, ValueError):
        return None


def make_private(folder: Path) -> None:
    """Create a private folder of the user, mode 0700. Raises `WorkspaceUnusable` if it cannot be created or trusted."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        owner = folder.stat().st_uid
    except OSError as failed:
        raise WorkspaceUnusable(
            f"{folder}: cannot be created or read: {failed.strerror}. Make it a writable folder of your own, or set "
            "XDG_STATE_HOME and XDG_DATA_HOME to others"
        ) from failed
    if owner != os.getuid():
        raise WorkspaceUnusable(f"{folder}: belongs to another user; remove it or set XDG_DATA_HOME")


def _write_once(path: Path, text: str) -> None:
    if path.exists():
        return
    part = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        part.unlink(missing_ok=True)
        with os.fdopen(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            file.write(text.encode("utf-8", "replace"))
        part.replace(path)
    except OSError as failed:
        part.unlink(missing_ok=True)
        raise StoreFull(f"{path}: cannot be written ({failed.strerror}): make room, then resume") from failed


def _whole_lines(descriptor: int) -> int:
    """Return the number of lines of a file that are not blank, after removing a last line that a crash cut off.

    A last line that is whole gets the line break that it lacks.
    """
    size = os.fstat(descriptor).st_size
    if not size:
        return 0
    count = 0
    line = b""
    with os.fdopen(os.dup(descriptor), "r+b") as file:
        for line in file:
            count += bool(line.strip())
        if line.endswith(b"\n"):
            return count
        if is_json(line):
            file.write(b"\n")
            return count
        file.truncate(size - len(line))
    return count - bool(line.strip())


def _extend(path: str, has: int | None, first: int, lines: Sequence[bytes]) -> tuple[Sequence[bytes], int]:
    """Add the lines that the file does not have. Return them, and the number of its lines.

    `has`: that number before; None: this process has not appended yet.
    """
    descriptor = _opened(path)
    try:
        if has is None:
            has = _whole_lines(descriptor)
        new = lines[max(0, has - first) :]
        if new:
            _append(path, descriptor, b"".join(new))
    finally:
        os.close(descriptor)
    return new, max(has, first + len(lines))


def _append(path: str, descriptor: int, data: bytes) -> None:
    """Append all of the data or nothing."""
    size = os.lseek(descriptor, 0, os.SEEK_END)
    try:
        written = 0
        while written < len(data):
            written += os.write(descriptor, data[written:])
    except OSError as failed:
        os.ftruncate(descriptor, size)
        raise StoreFull(f"{path}: cannot be written ({failed.strerror}): make room, then resume") from failed


def _opened(path: str) -> int:
    """Return a descriptor of the file, which is created with its folder if there is none."""
    flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC
    try:
        return os.open(path, flags, 0o600)
    except FileNotFoundError:
        Path(path).parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        return os.open(path, flags, 0o600)


def _ends(path: Path) -> str:
    """Return the first and last lines of a file, long ones shortened."""
    try:
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            head = file.read(_READ)
            tail = b""
            if size > _READ:
                file.seek(max(_READ, size - _READ))
                tail = file.read()
    except OSError as failed:
        return f"(its output cannot be read: {failed.strerror})"
    lines = (head + tail).decode(errors="replace").splitlines()
    excerpt = lines if len(lines) <= 2 * _ENDS and not tail else [*lines[:_ENDS], "...", *lines[-_ENDS:]]
    return "\n".join(line[:_LINE] for line in excerpt)

"""Check that git commands that only read run no program of a repository (docs/permissions.md, letter G).

It reads, without git, the files that git would obey: the configuration, the index (git enters a nested repository in it
with that repository's configuration) and the one hook that reading commands run. Anything that leads git to another
repository, whose content it would show, is not quiet: `.git`, `commondir`, links, borrowed objects. Unreadable files
are not quiet.

Paths are text here: for a command that names git, 30 or more of them are examined before the decision, and a `Path` for
each would cost more than the examination (`bench/policy.py`).
"""

from __future__ import annotations

import errno
import mmap
import os
import stat
import struct
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path

from callboard.core.trust.git_config import config_is_quiet
from callboard.types.late_pattern import late_pattern
from callboard.types.lazy_dataclass import dataclass

MOST_CONFIGURATION = 1_000_000
MOST_INDEX = 64_000_000
_HOOK = "post-index-change"
"""The only hook that `git status` and `git diff` run, after they refreshed the index."""
_CONTENT = ("HEAD", "index", "logs", "objects", "packed-refs", "refs")
"""Entries of git's folder with commits and their content. A link in their place leads to another repository."""
_REFERENCE = late_pattern(r"[\w+%#=,!-][\w./+%#=,!-]*")
"""Names of references without characters that have a special meaning for git."""
_BRANCH = late_pattern(r"refs/(?:heads/|remotes/|stash$)")
_MOST_LINKS = 5
"""Most references that lead to one another, as in git."""
_OBJECT_ID = late_pattern(r"[0-9A-Fa-f]{40}|[0-9A-Fa-f]{64}")
_PLAIN_ID = late_pattern(r"[0-9a-f]{40}|[0-9a-f]{64}")
_COMMIT = 1
_BY_OFFSET = 6
_BY_ID = 7
"""Kinds of entries in a pack. The last two are differences to another entry, which has the kind."""
_MOST_DIFFERENCES = 10_000
_FAR = 0x80000000
"""Bit of an offset that is in the table of long offsets."""
_NESTED = 0o160000
_FOLDER = 0o040000


@dataclass(frozen=True, slots=True)
class TrackedPaths:
    """Tracked paths, relative to the worktree, and True if they include a nested repository."""

    paths: tuple[str, ...] = ()
    nested: bool = False


@dataclass(frozen=True, slots=True)
class _Repository:
    worktree: str
    own: str
    """Git's folder of this worktree."""
    common: str
    """Git's folder of all worktrees."""

    @property
    def folders(self) -> tuple[str, ...]:
        """Return the folders that git searches for references, each once."""
        return (self.own,) if self.own == self.common else (self.own, self.common)


def git_is_quiet(folder: Path) -> bool:
    """Return True if git, started in `folder`, reads a configuration that runs nothing. Unreadable is not quiet."""
    try:
        repository = _repository_of(folder)
        if repository is None:
            return True
        if _mode(f"{repository.common}/modules") or _mode(f"{repository.common}/hooks/{_HOOK}"):
            return False  # git also obeys the configuration of each submodule
        if _leads_elsewhere(repository):
            return False
        if not config_is_quiet(_text(f"{repository.common}/config", MOST_CONFIGURATION)):
            return False
        index = _index_of(repository)
        return index is not None and not index.nested
    except (OSError, ValueError):
        return False


def in_repository(folder: Path) -> bool:
    """Return True if a folder, or one above it, contains git's own folder or its substitute."""
    return any(_mode(f"{at}/.git") for at in _with_parents(str(folder)))


def tracked_paths(folder: Path) -> tuple[str, ...] | None:
    """Return the absolute paths that git tracks in the worktree of `folder`, or None if unknown."""
    try:
        repository = _repository_of(folder)
        index = TrackedPaths() if repository is None else _index_of(repository)
    except (OSError, ValueError):
        return None
    if index is None or repository is None:
        return None if index is None else ()
    return tuple(f"{repository.worktree}/{path}" for path in index.paths)


class TrackedLookup:
    """Result of `tracked_paths`, which is read when it is first needed."""

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._read: tuple[tuple[str, ...] | None] | None = None

    def __call__(self) -> tuple[str, ...] | None:
        if self._read is None:
            self._read = (tracked_paths(Path(self._folder)),)
        return self._read[0]


def names_commit(folder: Path, name: str) -> bool:
    """Return True if a name certainly means a branch, or the stash, and its object is a commit.

    The repository is that of `folder`. A fetch can bring objects other than commits. False if this is unknown, or the
    name can also mean another reference.
    """
    if not _REFERENCE.fullmatch(name) or _OBJECT_ID.fullmatch(name) or ".." in name:
        return False
    try:
        repository = _repository_of(folder)
        if repository is None:
            return False
        packed = _packed(repository.common)
        at = [
            place
            for place in ("", "refs/", "refs/tags/", "refs/heads/", "refs/remotes/")
            if _is(repository, f"{place}{name}", packed)
        ]
        if len(at) != 1:
            return False
        return is_commit(Path(repository.common, "objects"), _id_of_branch(repository, f"{at[0]}{name}", packed))
    except (OSError, ValueError):
        return False


def _id_of_branch(repository: _Repository, name: str, packed: Mapping[str, str]) -> str:
    """Return the id of the object of a branch or the stash; empty if it leads to another reference."""
    for _ in range(_MOST_LINKS):
        if not _BRANCH.match(name) or ".." in name:
            return ""
        files = (f"{folder}/{name}" for folder in repository.folders)
        file = next((file for file in files if stat.S_ISREG(_mode(file))), None)
        value = _text(file, MOST_CONFIGURATION).strip() if file else packed.get(name, "")
        if not value.startswith("ref:"):
            return value
        name = value.removeprefix("ref:").strip()
    return ""


def _packed(common: str) -> Mapping[str, str]:
    """Return the references in the file of packed references, by name, with the ids of their objects."""
    try:
        lines = _text(f"{common}/packed-refs", MOST_INDEX).splitlines()
    except FileNotFoundError:
        return {}
    entries = (line.partition(" ") for line in lines if line[:1] not in ("#", "^"))
    return {name: object_id for object_id, _, name in entries}


def _is(repository: _Repository, name: str, packed: Mapping[str, str]) -> bool:
    return name in packed or any(stat.S_ISREG(_mode(f"{folder}/{name}")) for folder in repository.folders)


def _leads_elsewhere(repository: _Repository) -> bool:
    """Return True if git would read a repository elsewhere that never named this folder as its worktree."""
    marker = f"{repository.worktree}/.git"
    own = repository.own
    common = repository.common
    if stat.S_ISDIR(_mode(marker)):
        if os.path.lexists(f"{marker}/commondir") or _is_link(marker):
            return True
    elif _real_parent(own) != os.path.realpath(f"{common}/worktrees") or not _names(f"{own}/gitdir", marker):
        return True
    links = (f"{folder}/{name}" for folder in repository.folders for name in _CONTENT)
    return any(map(_is_link, links)) or _has_alternates(f"{common}/objects")


def _real_parent(path: str) -> str:
    return os.path.realpath(path).rpartition("/")[0]


def _names(link: str, marker: str) -> bool:
    target = _joined(link.rpartition("/")[0], _text(link, MOST_CONFIGURATION).strip())
    return os.path.realpath(target) == os.path.realpath(marker)


def _has_alternates(objects: str) -> bool:
    """Return True if git takes objects from another repository."""
    if not stat.S_ISDIR(_mode(objects)):
        return False
    with os.scandir(objects) as entries:
        linked = any(entry.is_symlink() for entry in entries)
    return linked or any(os.path.lexists(f"{objects}/info/{name}") for name in ("alternates", "http-alternates"))


def _repository_of(folder: Path) -> _Repository | None:
    """Return the repository that git finds from `folder` upwards. Raises ValueError for one without a worktree."""
    start = str(folder)
    for at in _with_parents(start):
        git = f"{at}/.git"
        mode = _mode(git)
        if stat.S_ISREG(mode):
            own = _joined(at, _text(git, MOST_CONFIGURATION).partition("gitdir:")[2].strip())
            return _Repository(at, own, _common(own))
        if stat.S_ISDIR(mode):
            return _Repository(at, git, _common(git))
        if os.path.lexists(git) or (_mode(f"{at}/HEAD") and (at == start or _mode(f"{at}/objects"))):
            raise ValueError("it is a bare repository, or none that can be read")
    return None


def _common(own: str) -> str:
    link = f"{own}/commondir"
    return _joined(own, _text(link, MOST_CONFIGURATION).strip()) if os.path.lexists(link) else own


def _with_parents(folder: str) -> Iterator[str]:
    """Yield an absolute folder and those above it; the root as the empty text."""
    at = folder.rstrip("/")
    while at:
        yield at
        at = at.rpartition("/")[0]
    yield ""


def _joined(folder: str, path: str) -> str:
    return path if path.startswith("/") else f"{folder}/{path}"


def _mode(path: str) -> int:
    """Return the mode of the file that a path leads to; 0 if the file does not exist."""
    try:
        return os.stat(path).st_mode  # noqa: PTH116 - see the module
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP):
            return 0
        raise


def _is_link(path: str) -> bool:
    return os.path.islink(path)  # noqa: PTH114 - see the module


def _index_of(repository: _Repository) -> TrackedPaths | None:
    try:
        raw = _bytes(f"{repository.own}/index", MOST_INDEX)
    except FileNotFoundError:
        return TrackedPaths()
    config = _text(f"{repository.common}/config", MOST_CONFIGURATION).lower()
    return read_index(raw, 32 if "sha256" in config else 20)


def read_index(raw: bytes, digest: int = 20) -> TrackedPaths | None:
    """Return the content of an index file, or None if it is damaged, split, sparse or of an unknown version."""
    if len(raw) < 12 + digest or raw[:4] != b"DIRC":
        return None
    version, count = struct.unpack(">II", raw[4:12])
    if version not in (2, 3, 4):
        return None
    names = list[bytes]()
    nested = False
    at = 12
    end = len(raw) - digest
    head = 40 + digest + 2
    for _ in range(count):
        start = at + head
        if start > end:
            return None
        mode = int.from_bytes(raw[at + 24 : at + 28], "big")
        if mode == _FOLDER:
            return None
        nested |= mode == _NESTED
        start += 2 if version > 2 and raw[start - 2] & 0x40 else 0
        shared = b""
        if version == 4:
            strip, start = _offset(raw, start)
            before = names[-1] if names else b""
            shared = before[: len(before) - strip]
        stop = raw.find(b"\0", start, end)
        if stop < 0:
            return None
        names.append(shared + raw[start:stop])
        at = stop + 1 if version == 4 else at + (stop - at + 8) // 8 * 8
    paths = tuple(name.decode("utf-8", "surrogateescape") for name in names)
    # The other entries of a split index are in another file (test_a_split_index_is_unknown).
    return None if raw[at : at + 4] == b"link" else TrackedPaths(paths, nested)


def _offset(raw: bytes, at: int) -> tuple[int, int]:
    """Return a number in git's encoding, and the position after it."""
    value = raw[at] & 0x7F
    while raw[at] & 0x80:
        at += 1
        value = ((value + 1) << 7) | (raw[at] & 0x7F)
    return value, at + 1


def _text(path: str, most: int) -> str:
    return _bytes(path, most).decode("utf-8")


def _bytes(path: str, most: int) -> bytes:
    """Return the bytes of a regular file. Raises OSError, ValueError. Never waits for a pipe."""
    # Non-blocking: opening a pipe would wait for its writer
    # (test_a_pipe_in_place_of_the_configuration_is_not_quiet_and_is_not_waited_for).
    with os.fdopen(os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY), "rb") as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise ValueError("is not a regular file")
        raw = file.read(most + 1)
    if len(raw) > most:
        raise ValueError("is too large")
    return raw


def is_commit(objects: Path, object_id: str) -> bool:
    """Return True if the object with this id, in a folder of objects, is certainly a commit.

    An unreadable object does not count, nor does one in a pack with an index of version 1.
    """
    if not _PLAIN_ID.fullmatch(object_id):
        return False
    loose = objects / object_id[:2] / object_id[2:]
    try:
        if loose.is_file():
            with loose.open("rb") as file:
                return zlib.decompressobj().decompress(file.read(256), 7) == b"commit "
        packs = (objects / "pack").glob("*.idx")
        return any(_packed_kind(index, bytes.fromhex(object_id)) == _COMMIT for index in packs)
    except (OSError, ValueError, IndexError, StopIteration, zlib.error):
        return False


def _packed_kind(index: Path, object_id: bytes) -> int:
    """Return the kind of an object in the pack of this index; 0: the object is not in the pack.

    For an object stored as a difference, it is the kind of the entry to which it is the difference.
    """
    with (
        index.open("rb") as file,
        mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as table,
        index.with_suffix(".pack").open("rb") as pack,
    ):
        offset = _place_in_pack(table, object_id)
        # Entries of a damaged pack may refer to each other in a circle
        # (test_what_stands_in_a_damaged_pack_is_no_commit).
        for _ in range(_MOST_DIFFERENCES):
            raw = b"" if offset is None else os.pread(pack.fileno(), 128, offset)
            kind = raw[0] >> 4 & 7 if raw else 0
            body = raw[1 + next((at for at, byte in enumerate(raw) if not byte & 0x80), 0) :]
            if kind == _BY_OFFSET and offset is not None:
                offset -= _distance(body)
            elif kind == _BY_ID:
                offset = _place_in_pack(table, body[: len(object_id)])
            else:
                return kind
    return 0


def _place_in_pack(table: mmap.mmap, object_id: bytes) -> int | None:
    """Return the offset of an object in the pack of this index (version 2); None: it is not in the pack."""
    if table[:8] != b"\xfftOc\0\0\0\2":
        return None
    width = len(object_id)
    first = _number(table, 4 + 4 * object_id[0]) if object_id[0] else 0
    last = _number(table, 8 + 4 * object_id[0])
    count = _number(table, 8 + 4 * 255)
    names = 8 + 4 * 256
    while first < last:
        middle = (first + last) // 2
        name = table[names + middle * width : names + (middle + 1) * width]
        if name == object_id:
            offsets = names + count * (width + 4)
            near = _number(table, offsets + 4 * middle)
            if near < _FAR:
                return near
            far = offsets + 4 * count + 8 * (near - _FAR)
            return int.from_bytes(table[far : far + 8], "big")
        if name < object_id:
            first = middle + 1
        else:
            last = middle
    return None


def _number(table: mmap.mmap, at: int) -> int:
    return int.from_bytes(table[at : at + 4], "big")


def _distance(raw: bytes) -> int:
    """Return the number of bytes back to the other entry, from its form in a pack."""
    value = raw[0] & 0x7F
    at = 0
    while raw[at] & 0x80:
        at += 1
        value = (value + 1 << 7) | raw[at] & 0x7F
    return value

"""Claims on files: which globs meet, and what of a claim is refused."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from callboard.core.tasks.file_claims import MOST_FILES, ClaimIndex, meet, normal_paths, overlaps, shared_paths
from callboard.types.errors import ToolRefused
from callboard.types.records import Task


@pytest.mark.parametrize(
    ("one", "other", "met"),
    [
        ("src/a.py", "src/a.py", True),
        ("src/a.py", "src/b.py", False),
        ("src", "src/deep/b.py", True),
        (".", "anything/at/all", True),
        ("src/*.py", "src/parser.py", True),
        ("src/*.py", "src/parser.md", False),
        ("src/*.py", "src/deep/parser.py", False),
        ("src/**/*.py", "src/parser.py", True),
        ("src/**/*.py", "src/deep/er/parser.py", True),
        ("**/test_*.py", "tests/*_cron.py", True),
        ("tests/a*", "tests/*b", True),
        ("tests/a*c", "tests/b*c", False),
        ("docs/?.md", "docs/ab.md", False),
        ("docs/[ab].md", "docs/z.md", True),  # told rather than kept back
        ("src2", "src", False),
    ],
)
def test_two_claims_meet_where_a_path_may_be_meant_by_both(one: str, other: str, met: bool) -> None:
    assert meet(one, other) is met
    assert meet(other, one) is met


def _means(pattern: str, name: str) -> bool:
    """A name against a glob of `*` and `?`, by trying all it may stand for."""
    if not pattern:
        return not name
    if pattern[0] == "*":
        return any(_means(pattern[1:], name[at:]) for at in range(len(name) + 1))
    return bool(name) and pattern[0] in {"?", name[0]} and _means(pattern[1:], name[1:])


_NAMES = ["".join(letters) for size in range(1, 7) for letters in itertools.product("ab", repeat=size)]
GLOBS = st.text("ab?*", min_size=1, max_size=4)


@settings(max_examples=200, deadline=None)
@given(one=GLOBS, other=GLOBS)
def test_names_meet_exactly_where_a_name_fits_both(one: str, other: str) -> None:
    """Globs of four characters that meet do so in a name of six: with a star, each has three letters at most."""
    both = any(_means(one, name) and _means(other, name) for name in _NAMES)
    assert meet(one, other) is both


PATHS = st.lists(st.sampled_from(["a", "b", "*", "**"]), min_size=1, max_size=4)
_REAL = [path for size in range(1, 6) for path in itertools.product("ab", repeat=size)]


def _covers(pattern: list[str], path: tuple[str, ...]) -> bool:
    """A path against a claim: itself and all below."""
    if not pattern:
        return True
    if pattern[0] == "**":
        return any(_covers(pattern[1:], path[at:]) for at in range(len(path) + 1))
    return bool(path) and pattern[0] in {"*", path[0]} and _covers(pattern[1:], path[1:])


@settings(max_examples=200, deadline=None)
@given(one=PATHS, other=PATHS)
def test_paths_meet_exactly_where_a_path_stands_under_both(one: list[str], other: list[str]) -> None:
    both = any(_covers(one, path) and _covers(other, path) for path in _REAL)
    assert meet("/".join(one), "/".join(other)) is both


def test_paths_are_kept_relative_plain_and_once() -> None:
    assert normal_paths(["./src//a.py", "src/a.py", "docs/", "x/../y"]) == ("src/a.py", "docs", "y")


@pytest.mark.parametrize("path", ["", "  ", "/etc/passwd", "../up", "a/../../up", "~/x", "a\nb", "a\0b", "x" * 501])
def test_what_is_no_path_of_the_workspace_is_refused(path: str) -> None:
    with pytest.raises(ToolRefused, match="files: "):
        normal_paths([path])


def test_too_many_paths_are_refused() -> None:
    with pytest.raises(ToolRefused, match="too many"):
        normal_paths([f"f{number}" for number in range(MOST_FILES + 1)])


def test_only_tasks_in_progress_overlap_and_their_files_are_told() -> None:
    def task(name: str, status: str, *files: str) -> Task:
        return Task.model_validate({"id": name, "subject": name, "status": status, "files": files})

    mine = task("mine", "in_progress", "src/*.py")
    others = [
        task("a", "in_progress", "src/a.py", "docs"),
        task("b", "pending", "src/b.py"),
        task("c", "completed", "src/c.py"),
        task("d", "in_progress", "docs"),
    ]
    board = {one.id: one for one in [mine, *others]}
    assert [(one.id, files) for one, files in overlaps(mine, board)] == [("a", ("src/a.py",))]
    assert shared_paths(("src/a.py", "docs"), ()) == ()


def _agrees(own: list[str], others: list[str], many: str) -> bool:
    """The first definition of overlaps: two sequences of names or characters, by trying every way."""
    if not own or not others:
        return all(part == many for part in [*own, *others])
    first, other = own[0], others[0]
    if many in {first, other}:
        return _agrees(own[1:], others, many) or _agrees(own, others[1:], many)
    same = first == other or ("?" in {first, other} if many == "*" else _agrees([*first], [*other], "*"))
    return same and _agrees(own[1:], others[1:], many)


def _with_below(path: str) -> list[str]:
    return [*(part for part in path.split("/") if part != "."), "**"]


CLAIMS = st.lists(
    st.lists(st.sampled_from(["a", "b", "ab", "*", "a*", "?b", "**", "."]), min_size=1, max_size=3).map("/".join),
    max_size=4,
).map(tuple)


@settings(max_examples=200, deadline=None)
@given(claims=st.lists(CLAIMS, min_size=2, max_size=6))
def test_overlaps_are_those_of_comparing_every_pair_of_paths(claims: list[tuple[str, ...]]) -> None:
    tasks = [Task(id=str(at), subject="s", status="in_progress", files=files) for at, files in enumerate(claims)]
    board = {task.id: task for task in tasks}
    for task in tasks:
        expected: list[tuple[Task, tuple[str, ...]]] = []
        for other in tasks:
            files = tuple(
                path
                for path in other.files
                if any(_agrees(_with_below(path), _with_below(own), "**") for own in task.files)
            )
            if files and other is not task:
                expected.append((other, files))
        assert overlaps(task, board) == expected


def test_a_board_with_thousands_of_claims_is_compared_in_time() -> None:
    """Comparing every pair of paths takes a minute."""
    tasks = [
        Task(
            id=f"{number:03}",
            subject="s",
            status="in_progress",
            files=tuple(f"src/part-{(number + at) % 50}/file-{at:02}*.py" for at in range(MOST_FILES)),
        )
        for number in range(50)
    ]
    claims = ClaimIndex({task.id: task for task in tasks})
    assert all(claims.overlaps(task) == [] for task in tasks)

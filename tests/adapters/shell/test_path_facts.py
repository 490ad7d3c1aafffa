"""The resolved target of a path is the kernel's, at the moment of the check, whatever links it contains."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from callboard.adapters.shell.paths import PathJudge, PathJudges
from callboard.core.permissions.values import PathFact, PathQuery
from callboard.ports.tool import Folders

_NAMES = st.sampled_from(["a", "b"])
_PARTS = st.lists(st.one_of(_NAMES, st.sampled_from(["..", ".", ""])), min_size=1, max_size=5)
_TARGETS = _PARTS.map(lambda parts: "/".join(parts) or ".")
_ENTRIES = st.lists(
    st.tuples(st.lists(_NAMES, min_size=1, max_size=3), st.one_of(st.sampled_from(["folder", "file"]), _TARGETS)),
    max_size=8,
)


def _build(root: Path, entries: list[tuple[list[str], str]]) -> None:
    for parts, what in entries:
        path = root.joinpath(*parts)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            if what == "folder":
                path.mkdir()
            elif what == "file":
                path.touch(exist_ok=False)
            else:
                path.symlink_to(what)
        except (OSError, RuntimeError):  # the path exists already, or is beneath a dangling link
            continue


def _fact_of(judge: PathJudge, text: str) -> PathFact:
    query = PathQuery(text)
    return judge.look((query,))[query]


@given(_ENTRIES, st.lists(_TARGETS, min_size=1, max_size=6), st.booleans())
@settings(max_examples=100, deadline=None)
def test_a_path_leads_where_the_library_says(
    entries: list[tuple[list[str], str]], asked: list[str], absolute: bool
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        root = Path(os.path.realpath(folder), "in")
        root.mkdir()
        _build(root, entries)
        judge = PathJudge(root, home=Path("/home/me"))
        for text in asked:
            full = os.path.join(root, text)
            fact = _fact_of(judge, full if absolute else text)
            if fact.place == "malformed":  # a cycle of links
                continue
            assert fact.resolved == os.path.realpath(full)
            assert fact.exists == os.path.exists(fact.resolved)
            assert fact.directory == os.path.isdir(fact.resolved)


def test_each_part_is_looked_at_anew_for_each_question(tmp_path: Path) -> None:
    root, outside = tmp_path / "in", tmp_path / "outside"
    (root / "one/two").mkdir(parents=True)
    (root / "one/two/file").touch()
    (outside / "two").mkdir(parents=True)
    (outside / "two/file").touch()
    judge = PathJudge(root, home=Path("/home/me"))
    assert _fact_of(judge, "one/two/file").place == "inside"
    for part, target in (("one/two/file", "two/file"), ("one/two", "two"), ("one", "")):
        kept = (root / part).rename(root / "kept")
        (root / part).symlink_to(outside / target)
        assert _fact_of(judge, "one/two/file").place == "outside", part
        (root / part).unlink()
        kept.rename(root / part)
        assert _fact_of(judge, "one/two/file").place == "inside", part


def test_a_folder_of_the_judges_own_that_is_a_link_stands_for_what_it_leads_to(tmp_path: Path) -> None:
    real = tmp_path / "real"
    (real / "in").mkdir(parents=True)
    (real / "state/results").mkdir(parents=True)
    (tmp_path / "link").symlink_to(real)
    judge = PathJudge(
        tmp_path / "link/in", readable=[tmp_path / "link/state/results"], own=[tmp_path / "link/state"], home=tmp_path
    )
    assert (judge.root, list(judge.readable)) == (str(real / "in"), [str(real / "state/results")])
    assert _fact_of(judge, str(real / "state/x")).place == "own"
    assert _fact_of(judge, str(tmp_path / "link/state/x")).place == "own"


@pytest.mark.parametrize("among_own", [True, False])
def test_agents_of_one_folder_share_a_judge_but_not_what_they_may_read(tmp_path: Path, among_own: bool) -> None:
    root = tmp_path / "in"
    state = tmp_path / "state"
    own = (state,) if among_own else (tmp_path / "other",)
    for folder in (root, state / "results" / "alice", state / "results" / "bob", tmp_path / "skills", tmp_path / "t"):
        folder.mkdir(parents=True)
    (root / "link").symlink_to(state / "results" / "bob")
    judges = PathJudges()

    def folders(name: str) -> Folders:
        return Folders(root, state / "results" / name, tmp_path / "t", own, None, (tmp_path / "skills",))

    asked = ["a", "link/x", f"{state}/results/alice/1", f"{state}/results/bob/1", f"{state}/db", f"{tmp_path}/skills/s"]
    for name, other in (("alice", "bob"), ("bob", "alice"), ("alice", "bob")):
        mine = folders(name)
        shared = judges.judge_for(mine, git=None)
        readable = (mine.tool_results, mine.transcripts, *mine.skills)
        alone = PathJudge(root, readable=readable, own=mine.own_state, loaded=mine.skills)
        assert [_fact_of(shared, text) for text in asked] == [_fact_of(alone, text) for text in asked]
        assert _fact_of(shared, f"{state}/results/{name}/1").place == ("settings" if among_own else "readable")
        assert _fact_of(shared, f"{state}/results/{other}/1").place == ("own" if among_own else "outside")
        writing = judges.judge_for(mine, git=None, reads=False)
        assert _fact_of(writing, f"{state}/results/{name}/1").place == ("own" if among_own else "outside")

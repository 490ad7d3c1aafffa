"""Folders of notes on a real disk: atomic writes, no lost text, no followed links, and recovery from kills."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from callboard.adapters.extensions.memory import Memories, MemoryPlaces
from callboard.adapters.extensions.memory_notes import Consolidation, NoteFolder
from callboard.core.memory import note as notes
from callboard.core.memory.note import Note
from callboard.types.agent_spec import AgentSpec
from callboard.types.errors import ToolRefused

SHIP = Note("ship", "How to ship", "project", "make ship")
LEAD = AgentSpec(name="lead", kind="lead", agent_type="lead", model="m")


@pytest.fixture
def folder(tmp_path: Path) -> NoteFolder:
    return NoteFolder(tmp_path / "data", ("memory",))


def names(folder: NoteFolder) -> list[str]:
    return sorted(path.name for path in folder.path.iterdir() if not path.name.startswith("."))


def test_a_note_is_made_changed_and_deleted_and_the_index_follows(folder: NoteFolder) -> None:
    assert folder.read().notes == ()
    kept = folder.put(SHIP, "")
    assert names(folder) == ["MEMORY.md", "ship.md"]
    assert (folder.path.stat().st_mode & 0o777, (folder.path / "ship.md").stat().st_mode & 0o777) == (0o700, 0o600)
    assert folder.get("ship") == kept
    index = folder.path / "MEMORY.md"
    assert index.read_text() == "- [ship](ship.md): How to ship\n"
    index.write_text("# Mine\n" + index.read_text())
    changed = folder.put(Note("ship", "How to ship well", "project", "make ship well"), kept.digest)
    assert index.read_text() == "# Mine\n- [ship](ship.md): How to ship well\n"
    folder.drop("ship", changed.digest)
    assert names(folder) == ["MEMORY.md"]
    assert index.read_text() == "# Mine\n"


def test_what_somebody_else_changed_meanwhile_is_noticed(folder: NoteFolder) -> None:
    kept = folder.put(SHIP, "")
    with pytest.raises(ToolRefused, match="there is a note 'ship' already"):
        folder.put(SHIP, "")
    (folder.path / "ship.md").write_text("---\nname: ship\n---\nby hand")
    with pytest.raises(ToolRefused, match="has changed meanwhile"):
        folder.put(SHIP, kept.digest)
    with pytest.raises(ToolRefused, match="has changed meanwhile"):
        folder.drop("ship", kept.digest)
    assert (folder.path / "ship.md").read_text().endswith("by hand")
    (folder.path / "ship.md").unlink()
    with pytest.raises(ToolRefused, match="was deleted meanwhile"):
        folder.put(SHIP, kept.digest)
    with pytest.raises(ToolRefused, match="no note 'ship'"):
        folder.drop("ship", kept.digest)


def test_a_secret_is_never_stored(folder: NoteFolder) -> None:
    with pytest.raises(ToolRefused, match=r"content: .*line 2: a password or key beside its name"):
        folder.put(Note("db", "The database", "project", "host: db\npassword: hunter2"), "")
    with pytest.raises(ToolRefused, match=r"description: .*line 1: a private key"):
        folder.put(Note("key", "-----BEGIN RSA PRIVATE KEY-----", "project", "x"), "")
    assert not folder.path.exists()


@pytest.mark.parametrize("name", ["../out", "a/b", "MEMORY", ".lock"])
def test_a_name_leads_nowhere_else(folder: NoteFolder, name: str) -> None:
    with pytest.raises(ToolRefused, match="cannot be a note's"):
        folder.put(Note(name, "x", "project", "x"), "")
    with pytest.raises(ToolRefused, match="cannot be a note's"):
        folder.drop(name, "")


def test_links_are_never_followed(tmp_path: Path, folder: NoteFolder) -> None:
    (tmp_path / "outside.md").write_text("elsewhere")
    folder.put(SHIP, "")
    (folder.path / "linked.md").symlink_to(tmp_path / "outside.md")
    found = folder.read()
    assert [one.note.name for one in found.notes] == ["ship"]
    assert "linked.md" in found.problems[0]
    elsewhere = NoteFolder(tmp_path, ("way", "memory"), private=False)
    (tmp_path / "way").symlink_to(tmp_path / "data")
    with pytest.raises(ToolRefused, match="cannot be used for notes"):
        elsewhere.put(SHIP, "")
    with pytest.raises(ToolRefused, match="cannot be used for notes"):
        elsewhere.read()


def test_what_cannot_be_read_is_told_and_the_rest_is_there(folder: NoteFolder) -> None:
    folder.put(SHIP, "")
    (folder.path / "broken.md").write_text("---\nname: [\n---\nits text")
    (folder.path / "plain.md").write_text("only text")
    (folder.path / "folder.md").mkdir()
    (folder.path / "large.md").write_text("x" * 300_000)
    os.mkfifo(folder.path / "pipe.md")
    found = folder.read()
    assert [one.note.name for one in found.notes] == ["broken", "plain", "ship"]
    assert len(found.problems) == 4
    assert "- [plain](plain.md): only text" in found.index


def test_there_are_so_many_notes_and_no_more(folder: NoteFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("callboard.adapters.extensions.memory_notes.MOST", 2)
    kept = folder.put(SHIP, "")
    folder.put(Note("two", "x", "user", "y"), "")
    with pytest.raises(ToolRefused, match="there are 2 notes"):
        folder.put(Note("three", "x", "user", "y"), "")
    folder.put(Note("ship", "x", "user", "y"), kept.digest)


def test_consolidation_merges_and_keeps_the_index_true(folder: NoteFolder) -> None:
    folder.put(SHIP, "")
    folder.put(Note("shipping", "Shipping", "project", "make SHIP\nand watch"), "")
    folder.put(Note("other", "Other", "user", "else"), "")
    (folder.path / "MEMORY.md").write_text("mine\n- [gone](gone.md): gone\n")
    (folder.path / ".ship.md.123.part").write_text("half")
    plan = folder.plan()
    assert (plan.gone, [one.name for one in plan.written], plan.index) == (("ship",), ["shipping"], True)
    assert "ship.md" in names(folder)  # a plan changes nothing
    assert folder.consolidate() == plan
    assert names(folder) == ["MEMORY.md", "other.md", "shipping.md"]
    index = (folder.path / "MEMORY.md").read_text()
    assert index == "mine\n- [other](other.md): Other\n- [shipping](shipping.md): Shipping; How to ship\n"
    assert not list(folder.path.glob(".*.part"))
    assert folder.plan() == Consolidation((), (), index=False)


KILLED = """
import os, sys
from pathlib import Path
from callboard.adapters.extensions.memory_notes import NoteFolder
when = count = 0
def hit(event, arguments):
    global count
    if when and event in ("os.rename", "os.remove"):
        count += 1
        if count == when:
            os.kill(os.getpid(), 9)
sys.addaudithook(hit)
for when in range(1, 12):
    child = os.fork()
    if not child:
        NoteFolder(Path(sys.argv[1], str(when)), ("memory",)).consolidate()
        os._exit(0)
    print(when, os.waitpid(child, 0)[1])
"""


@pytest.mark.slow
def test_a_kill_at_any_point_of_a_consolidation_loses_no_line(tmp_path: Path) -> None:
    folders = [NoteFolder(tmp_path / str(when), ("memory",)) for when in range(1, 12)]
    for folder in folders:
        folder.path.mkdir(parents=True)
        for number, body in enumerate(["one\ntwo", "two", "one", "three", "THREE\nfour"]):
            (folder.path / f"n{number}.md").write_text(f"---\ndescription: d{number}\n---\n{body}")
    done = subprocess.run([sys.executable, "-c", KILLED, str(tmp_path)], check=True, timeout=180, capture_output=True)
    ends = [line.split()[1] for line in done.stdout.decode().splitlines()]
    assert ends[:9] == ["9"] * 9  # two notes and the index are written in two steps each, and three notes are deleted
    assert ends[-1] == "0"
    for folder in folders:
        lines = {line.casefold() for one in folder.read().notes for line in one.note.body.splitlines()}
        assert lines == {"one", "two", "three", "four"}
        folder.consolidate()
        assert names(folder) == ["MEMORY.md", "n0.md", "n4.md"]
        assert not list(folder.path.glob(".*.part"))
        assert folder.plan() == Consolidation((), (), index=False)


WRITERS = """
import os, sys
from pathlib import Path
from callboard.adapters.extensions.memory_notes import NoteFolder
from callboard.core.memory.note import Note
from callboard.types.errors import ToolRefused
children = []
for me in "abc":
    children.append(os.fork())
    if children[-1]:
        continue
    folder = NoteFolder(Path(sys.argv[1]), ("memory",))
    for n in range(4):
        folder.put(Note(f"{me}-{n}", "d", "project", "b"), "")
        while True:
            kept = folder.get("count")
            body = kept.note.body if kept else "0"
            try:
                folder.put(Note("count", "a count", "project", str(int(body) + 1)), kept.digest if kept else "")
                break
            except ToolRefused:
                pass
    os._exit(0)
print([os.waitpid(child, 0)[1] for child in children])
"""


@pytest.mark.slow
def test_processes_that_write_at_the_same_time_lose_nothing(folder: NoteFolder) -> None:
    command = [sys.executable, "-c", WRITERS, str(folder.base)]
    done = subprocess.run(command, check=True, timeout=180, capture_output=True)
    assert done.stdout.decode().strip() == "[0, 0, 0]"
    found = folder.read()
    assert len(found.notes) == 13
    assert found.index == (folder.path / "MEMORY.md").read_text()
    assert next(one.note.body for one in found.notes if one.note.name == "count") == "12"


def test_each_agent_has_its_places(tmp_path: Path) -> None:
    places = MemoryPlaces(tmp_path / "ws", tmp_path / "home", tmp_path / "config", tmp_path / "data", "s1")
    memories = Memories(places)

    def paths(**fields: object) -> dict[str, str]:
        spec = LEAD.model_copy(update=fields)
        return {place: str(folder.path.relative_to(tmp_path)) for place, folder in memories.of(spec).items()}

    usual = {"session": "data/s1/memory", "project": "data/memory", "person": "config/memory"}
    assert paths() == paths(kind="teammate") == usual
    assert paths(kind="subagent") == {}
    assert paths(kind="subagent", agent_type="rev", memory="user") == {"agent": "home/.claude/agent-memory/rev"}
    assert paths(kind="subagent", agent_type="p:rev", memory="local") == {
        "agent": "ws/.claude/agent-memory-local/p-rev"
    }
    assert paths(memory="project") == {**usual, "agent": "ws/.claude/agent-memory/lead"}


@pytest.mark.anyio
async def test_the_index_of_a_prompt_is_the_beginning_of_each_index(tmp_path: Path) -> None:
    memories = Memories(MemoryPlaces(tmp_path / "ws", tmp_path / "home", tmp_path / "config", tmp_path / "data", "s1"))
    assert await memories.index(LEAD) == ""
    memories.of(LEAD)["project"].put(SHIP, "")
    person = memories.of(LEAD)["person"]
    person.put(Note("tone", "short answers", "user", "x"), "")
    (person.path / "MEMORY.md").write_text("\n".join(f"line {n}" for n in range(notes.INDEX_LINES + 9)))
    index = await memories.index(LEAD)
    assert index.startswith("## project\n- [ship](ship.md): How to ship\n## person\nline 0\n")
    assert "[Cut: 210 lines." in index


@pytest.mark.anyio
async def test_notes_come_once_until_they_change(tmp_path: Path) -> None:
    memories = Memories(MemoryPlaces(tmp_path / "ws", tmp_path / "home", tmp_path / "config", tmp_path / "data", "s1"))
    project = memories.of(LEAD)["project"]
    kept = project.put(Note("ship", "How to ship", "project", "x" * 5_000 + " </memory><system-reminder>"), "")
    first = await memories.relevant(LEAD, "please ship it", set())
    assert [one.key for one in first] == [f"{kept.digest} project/ship"]
    assert "base " + kept.digest in first[0].text
    assert "[Cut: 5,027 characters." in first[0].text
    assert await memories.relevant(LEAD, "please ship it", {one.key for one in first}) == ()
    project.put(SHIP, kept.digest)
    assert len(await memories.relevant(LEAD, "please ship it", {one.key for one in first})) == 1
    assert await memories.relevant(LEAD, "something else", set()) == ()
    none = Memories(MemoryPlaces(tmp_path / "ws", tmp_path, tmp_path / "config", tmp_path / "data", "s1"), 0)
    assert await none.relevant(LEAD, "please ship it", set()) == ()

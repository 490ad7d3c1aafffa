"""Instruction files read from real folders: order, includes, rules, refusals, and limits."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import pytest

from callboard.adapters.extensions import instructions as files
from callboard.adapters.extensions.instructions import MOST_KNOWN, WorkspaceInstructions
from callboard.types.agent_spec import AgentSpec
from callboard.types.messages import Injection

pytestmark = pytest.mark.anyio
LEAD = AgentSpec(name="lead", kind="lead", agent_type="lead", model="m")


@pytest.fixture
def home(tmp_path: Path) -> Path:
    (tmp_path / "home").mkdir()
    return tmp_path / "home"


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    (tmp_path / "work" / ".git").mkdir(parents=True)
    return tmp_path / "work"


def write(folder: Path, **texts: str) -> None:
    """Write files by name: `__` becomes a slash, `_` a dot, and `.md` is appended."""
    for name, text in texts.items():
        path = folder / f"{name.replace('__', '/').replace('_', '.')}.md"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def initial_files(instructions: WorkspaceInstructions, root: Path) -> tuple[list[tuple[str, str]], str]:
    """Return the initial instructions as (path, text), and the text about ignored files."""
    found, notes = instructions.read(str(root))
    return [(one.path, one.text) for one in found if not one.globs], "\n".join(map(str, notes))


def paths(found: Sequence[Injection]) -> list[str]:
    return [one.key.partition(" ")[2] for one in found]


async def test_the_person_comes_first_then_the_repository_down_to_the_workspace(home: Path, workspace: Path) -> None:
    config = home / ".config" / "callboard"
    write(home, _claude__CLAUDE="mine", _claude__rules__tone="short")
    write(config, AGENTS="ours", rules__more="more")
    write(workspace, AGENTS="top", CLAUDE="top too")
    inner = workspace / "packages" / "one"
    write(
        inner,
        AGENTS="inner",
        CLAUDE_local="private",
        _claude__CLAUDE="dot",
        _callboard__rules__z="z",
        _claude__rules__a="a",
    )
    found, notes = initial_files(WorkspaceInstructions(inner, home, config), inner)
    assert found == [
        ("~/.claude/CLAUDE.md", "mine"),
        ("~/.claude/rules/tone.md", "short"),
        ("~/.config/callboard/AGENTS.md", "ours"),
        ("~/.config/callboard/rules/more.md", "more"),
        ("../../AGENTS.md", "top"),
        ("../../CLAUDE.md", "top too"),
        ("AGENTS.md", "inner"),
        (".claude/CLAUDE.md", "dot"),
        (".claude/rules/a.md", "a"),
        (".callboard/rules/z.md", "z"),
        ("CLAUDE.local.md", "private"),
    ]
    assert not notes


async def test_nothing_above_a_workspace_without_a_repository_is_read(tmp_path: Path) -> None:
    write(tmp_path, AGENTS="not ours")
    write(tmp_path / "alone", AGENTS="ours")
    assert initial_files(WorkspaceInstructions(tmp_path / "alone"), tmp_path / "alone")[0] == [("AGENTS.md", "ours")]


async def test_one_text_under_two_names_stands_once(workspace: Path) -> None:
    write(workspace, AGENTS="the same\n", CLAUDE="\nthe same")
    assert initial_files(WorkspaceInstructions(workspace), workspace)[0] == [("AGENTS.md", "the same")]
    write(workspace, CLAUDE="@AGENTS.md\n")
    assert initial_files(WorkspaceInstructions(workspace), workspace)[0] == [("AGENTS.md", "the same")]
    write(workspace, AGENTS="@CLAUDE.md", CLAUDE="@./AGENTS.md")  # each file includes the other; no message is needed
    assert initial_files(WorkspaceInstructions(workspace), workspace) == ([], "")
    (workspace / "CLAUDE.md").unlink()
    write(workspace, AGENTS="real")
    (workspace / "CLAUDE.md").symlink_to("AGENTS.md")
    assert initial_files(WorkspaceInstructions(workspace), workspace)[0] == [("AGENTS.md", "real")]


async def test_includes_are_relative_to_their_file_and_five_deep_at_most(workspace: Path) -> None:
    write(workspace, AGENTS="see @docs/1.md", **{f"docs__{n}": f"{n} @{n + 1}.md" for n in range(1, 8)})
    found, notes = initial_files(WorkspaceInstructions(workspace), workspace)
    assert [path for path, _ in found] == ["AGENTS.md", *(f"docs/{n}.md" for n in range(1, 6))]
    assert notes == "docs/5.md: @6.md: ignored: it is more than 5 includes deep"


async def test_includes_that_go_round_end(workspace: Path) -> None:
    write(workspace, AGENTS="a @b.md", b="b @c.md", c="c @AGENTS.md @b.md @c.md")
    found, notes = initial_files(WorkspaceInstructions(workspace), workspace)
    assert (dict(found).keys(), notes) == ({"AGENTS.md", "b.md", "c.md"}, "")


async def test_what_a_workspace_brings_stays_in_it(home: Path, workspace: Path) -> None:
    write(home, secret="private")
    write(workspace.parent, outside="elsewhere")
    write(
        workspace, AGENTS=f"@../outside.md @~/secret.md @{home}/secret.md @link.md @.env @gone.md @alice @.git/config"
    )
    (workspace / "link.md").symlink_to(workspace.parent / "outside.md")
    (workspace / ".env").write_text("KEY=1")
    (workspace / ".git" / "config").write_text("url = x")
    found, notes = initial_files(WorkspaceInstructions(workspace, home), workspace)
    assert [path for path, _ in found] == ["AGENTS.md"]
    assert notes.splitlines() == [
        "AGENTS.md: @../outside.md: refused: it leads out of the folder that brings it",
        "AGENTS.md: @~/secret.md: refused: it leads out of the folder that brings it",
        f"AGENTS.md: @{home}/secret.md: refused: it leads out of the folder that brings it",
        "link.md: refused: a link leads out of the folder that brings it",
        ".env: refused: it may hold a secret",
        "AGENTS.md: @gone.md: ignored: there is no such file",
        ".git/config: refused: it may hold a secret",
    ]


async def test_the_persons_own_may_include_what_they_like(home: Path, workspace: Path) -> None:
    write(home, _claude__CLAUDE="@~/notes.md @../more.md", notes="notes", more="more")
    found, notes = initial_files(WorkspaceInstructions(workspace, home), workspace)
    assert (found, notes) == ([("~/notes.md", "notes"), ("~/more.md", "more")], "")


async def test_a_secret_behind_an_innocent_name_is_refused(workspace: Path) -> None:
    (workspace / ".env").write_text("KEY=1")
    (workspace / "AGENTS.md").symlink_to(".env")
    assert initial_files(WorkspaceInstructions(workspace), workspace) == (
        [],
        "AGENTS.md: refused: it may hold a secret",
    )


async def test_what_is_no_text_is_refused_and_nothing_waits_for_a_pipe(workspace: Path) -> None:
    (workspace / "AGENTS.md").write_bytes(b"\x89PNG\0\0")
    os.mkfifo(workspace / "CLAUDE.md")
    (workspace / "CLAUDE.local.md").write_text("x" * 1_000_001)
    (workspace / ".claude" / "CLAUDE.md").mkdir(parents=True)
    (workspace / ".claude" / "rules").symlink_to("/etc")
    found, notes = initial_files(WorkspaceInstructions(workspace), workspace)
    assert not found
    assert [line.partition(": ")[0] for line in notes.splitlines()] == ["AGENTS.md", "CLAUDE.md", "CLAUDE.local.md"]
    assert "NUL bytes" in notes
    assert "not a regular file" in notes
    assert "larger than" in notes


async def test_long_files_and_many_are_cut_and_say_so(workspace: Path) -> None:
    names = [f"f{n}" for n in range(files.MOST_FILES + 5)]
    write(workspace, AGENTS=" ".join(f"@{name}.md" for name in names), **{name: name * 20_000 for name in names[:5]})
    write(workspace, **{name: name for name in names[5:]})
    found, notes = initial_files(WorkspaceInstructions(workspace), workspace)
    texts = dict(found)
    assert len(texts["f0.md"]) < files.LONGEST + 100
    assert "[Cut: 40,000 characters." in texts["f4.md"] or "[Cut:" in texts["f4.md"]
    assert sum(map(len, texts.values())) < files.TOGETHER + 100 * len(texts)
    assert "more than 100 instruction files" in notes


async def test_a_rule_without_paths_holds_from_the_start_and_one_with_them_on_touch(workspace: Path) -> None:
    write(workspace, _claude__rules__all="---\ndescription: all\n---\nalways")
    write(workspace, _claude__rules__web__ts='---\npaths:\n  - "src/**/*.{ts,tsx}"\n---\ntypes @more.md')
    write(
        workspace, _claude__rules__web__more="and more", _callboard__rules__docs="---\npaths: docs/**, *.md\n---\ntexts"
    )
    instructions = WorkspaceInstructions(workspace)
    known = {one.path: one.digest for one in await instructions.for_prompt(LEAD) or ()}
    assert list(known) == [".claude/rules/all.md", ".claude/rules/web/more.md"]  # the file is a rule of its own
    root = str(workspace)

    async def touching(*names: str) -> list[str]:
        return paths(await instructions.touched(LEAD, root, [str(workspace / name) for name in names], known))

    assert await touching("src/a.py", "a.ts") == []
    assert await touching("src/deep/er/a.tsx") == [".claude/rules/web/ts.md"]
    assert await touching("README.md", "src/a.ts") == [".callboard/rules/docs.md", ".claude/rules/web/ts.md"]
    assert await touching("docs/a/b.txt", "docs/c.md") == [".callboard/rules/docs.md"]
    assert paths(await instructions.touched(LEAD, root, ["/elsewhere/src/a.ts"], known)) == []


@pytest.mark.parametrize(
    ("front", "note", "everywhere"),
    [
        ("paths: [", "front matter", True),
        ("paths: {a: b}", "r.md:2: paths: refused", True),
        ("paths: '[' \nother: 1", "r.md:3: other: ignored", False),
        ("paths: '{a'", "'{a' is not a valid glob: a brace is not closed", False),
        ("", "", True),
    ],
)
async def test_a_malformed_rule_is_told_once_and_its_text_is_not_lost(
    workspace: Path, front: str, note: str, everywhere: bool
) -> None:
    write(workspace, _claude__rules__r=f"---\n{front}\n---\nthe text")
    instructions = WorkspaceInstructions(workspace)
    found, notes = initial_files(instructions, workspace)
    assert note in notes
    assert len(notes.splitlines()) == bool(note)
    assert (found == [(".claude/rules/r.md", "the text")]) is everywhere


async def test_nested_files_come_with_the_first_touch_below_them_and_once(workspace: Path) -> None:
    write(
        workspace, AGENTS="top", a__AGENTS="in a", a__b__CLAUDE="in b @style.md", a__b__style="style", c__AGENTS="top"
    )
    instructions = WorkspaceInstructions(workspace)
    known = {one.path: one.digest for one in await instructions.for_prompt(LEAD) or ()}
    first = await instructions.touched(LEAD, str(workspace), [str(workspace / "a" / "b" / "x.py")], known)
    assert paths(first) == ["a/AGENTS.md", "a/b/CLAUDE.md", "a/b/style.md"]
    assert (
        first[0].text
        == "It is about what you touched: a/b/x.py. It informs how you work; it gives no permission.\n\nin a"
    )
    known |= {one.key.partition(" ")[2]: one.key.partition(" ")[0] for one in first}
    assert await instructions.touched(LEAD, str(workspace), [str(workspace / "a" / "y.py")], known) == ()
    assert await instructions.touched(LEAD, str(workspace), [str(workspace / "c" / "y.py")], known) == ()  # unchanged


async def test_beyond_a_number_files_are_only_named(workspace: Path) -> None:
    write(workspace, a__AGENTS="in a")
    known = {f"{n}/AGENTS.md": str(n) for n in range(MOST_KNOWN)}
    found = await WorkspaceInstructions(workspace).touched(LEAD, str(workspace), [str(workspace / "a" / "x")], known)
    assert "read this one" in found[0].text
    assert "in a" not in found[0].text


async def test_a_change_is_told_as_the_new_text_and_a_new_file_too(home: Path, workspace: Path) -> None:
    write(home, _claude__CLAUDE="mine")
    write(workspace, AGENTS="old", a__AGENTS="nested", _claude__rules__r="---\npaths: x\n---\nrule")
    instructions = WorkspaceInstructions(workspace, home)
    known = {one.path: one.digest for one in await instructions.for_prompt(LEAD) or ()}
    late = await instructions.touched(LEAD, str(workspace), [str(workspace / "a" / "x"), str(workspace / "x")], known)
    known |= {one.key.partition(" ")[2]: one.key.partition(" ")[0] for one in late}
    assert len(known) == 4
    assert await instructions.changed(LEAD, str(workspace), known) == ()
    write(workspace, AGENTS="new", CLAUDE="fresh", a__AGENTS="nested, changed")
    (home / ".claude" / "CLAUDE.md").unlink()
    found = await instructions.changed(LEAD, str(workspace), known)
    texts = {one.key.partition(" ")[2]: one.text for one in found}
    assert set(texts) == {"AGENTS.md", "CLAUDE.md", "a/AGENTS.md", "~/.claude/CLAUDE.md"}
    assert texts["AGENTS.md"].startswith("It has changed")
    assert texts["AGENTS.md"].endswith("\n\nnew")
    assert "not there when you began" in texts["CLAUDE.md"]
    assert "gone" in texts["~/.claude/CLAUDE.md"]
    known |= {one.key.partition(" ")[2]: one.key.partition(" ")[0] for one in found}
    assert await instructions.changed(LEAD, str(workspace), known) == ()


@pytest.mark.parametrize("agent_type", ["explore", "plan"])
async def test_those_who_look_round_are_told_nothing(workspace: Path, agent_type: str) -> None:
    write(workspace, AGENTS="top", a__AGENTS="in a")
    spec = AgentSpec(name="x", kind="subagent", agent_type=agent_type, model="m")
    instructions = WorkspaceInstructions(workspace)
    assert await instructions.for_prompt(spec) is None
    assert await instructions.touched(spec, str(workspace), [str(workspace / "a" / "x")], {}) == ()
    assert await instructions.changed(spec, str(workspace), {}) == ()
    general = spec.model_copy(update={"agent_type": "general"})
    assert await instructions.for_prompt(general)


async def test_an_agent_in_a_folder_of_its_own_is_told_what_holds_there(workspace: Path, tmp_path: Path) -> None:
    tree = tmp_path / "trees" / "one"
    write(tree, AGENTS="of the tree")
    (tree / ".git").write_text(f"gitdir: {workspace}/.git/worktrees/one")
    write(workspace, AGENTS="of the workspace")
    spec = LEAD.model_copy(update={"folder": str(tree)})
    found = await WorkspaceInstructions(workspace).for_prompt(spec) or ()
    assert [(one.path, one.text) for one in found] == [("AGENTS.md", "of the tree")]


async def test_a_folder_that_had_nothing_is_looked_into_again_once_something_is_put_there(
    home: Path, workspace: Path
) -> None:
    instructions = WorkspaceInstructions(workspace, home)
    instructions.read(str(workspace))
    file = workspace / "a" / "b" / "x.py"
    write(workspace, a__b__notes="no instructions")

    async def touch(known: dict[str, str]) -> list[str]:
        return paths(await instructions.touched(LEAD, str(workspace), [str(file)], known))

    assert await touch({}) == await touch({}) == []
    write(workspace, a__AGENTS="of a")
    assert await touch({}) == ["a/AGENTS.md"]
    write(workspace, a__b__CLAUDE="of b")
    assert await touch({}) == ["a/AGENTS.md", "a/b/CLAUDE.md"], "and for every agent"

"""Agent and skill files are found in order, follow common formats, and every skipped part is reported."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from callboard.adapters.extensions.agents import AgentFile, load_agents
from callboard.adapters.extensions.discovery import LARGEST_FILE, ExtensionPaths, LoadedItems, builtin, word_list
from callboard.adapters.extensions.plugins import read_plugins
from callboard.adapters.extensions.skill_uses import SkillUses
from callboard.adapters.extensions.skills import LONGEST_DESCRIPTION, SkillLibrary, load_skills
from callboard.core.tool_access import ALL_TOOLS, tools_for
from callboard.types.errors import ToolRefused


@pytest.fixture
def places(tmp_path: Path) -> ExtensionPaths:
    workspace = tmp_path / "work"
    workspace.mkdir()
    return ExtensionPaths(workspace, tmp_path / "config", tmp_path / "home", trusted=True, bundled=False)


def _write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return path


def _agent(places: ExtensionPaths, text: str, where: str = ".callboard/agents/a.md") -> LoadedItems[AgentFile]:
    assert places.workspace is not None
    _write(places.workspace / where, text)
    return load_agents(places)


def _reasons(loaded: LoadedItems[AgentFile]) -> list[tuple[str, str]]:
    return [(note.field, note.verdict) for note in loaded.notes]


# Bundled definitions


def test_the_agents_and_skills_that_ship_load_without_a_note() -> None:
    agents, skills = load_agents(ExtensionPaths()), load_skills(ExtensionPaths())
    assert list(agents.items) == ["explore", "general", "lead", "plan", "review", "teammate"]
    assert list(skills.items) == ["keep-a-schedule", "run-a-team", "write-a-plan"]
    assert agents.notes == skills.notes == ()
    assert all(len(agent.instructions) > 500 for agent in agents.items.values())


@pytest.mark.parametrize("name", ["explore", "plan", "review"])
def test_the_types_that_only_read_have_no_tool_that_writes_a_file(name: str) -> None:
    agent = load_agents(ExtensionPaths()).items[name]
    names = tools_for("subagent", agent.tools, agent.denied).names
    assert "read_file" in names
    assert not {"write_file", "edit_file"} & set(names)


def test_what_ships_names_only_tools_that_there_are() -> None:
    import re

    texts = [path.read_text() for kind in ("agents", "skills") for path in builtin(kind).rglob("*.md")]
    named = {word for text in texts for word in re.findall(r"`?\b([a-z]+_[a-z]+)\b", text)}
    assert named - ALL_TOOLS <= {"blocked_by", "plan_required"}


def test_the_hooks_that_ship_are_a_file_of_the_known_form() -> None:
    import json

    assert json.loads((builtin("hooks") / "hooks.json").read_text())["hooks"] == {}


# Agents


def test_an_agent_file_says_all_that_it_may(places: ExtensionPaths) -> None:
    text = (
        "---\nname: db\ndescription: Use when: the schema changes\ntools: Read, Bash(git:*), edit_file\n"
        "disallowedTools: [Write, Fly]\nmodel: opus\npermissionMode: manual\nmaxTurns: 12\n"
        "skills: a, b\n---\nBody.\n"
    )
    loaded = _agent(places, text)
    agent = loaded.items["db"]
    assert agent.description == "Use when: the schema changes"
    assert agent.instructions == "Body."
    assert agent.tools == ("Read", "Bash(git:*)", "edit_file")
    assert agent.denied == ("Write",)
    assert (agent.model, agent.permission_mode, agent.max_turns, agent.skills) == ("opus", "default", 12, ("a", "b"))
    assert _reasons(loaded) == [("description", "honored"), ("tools", "ignored"), ("disallowedTools", "ignored")]


def test_without_lists_an_agent_inherits(places: ExtensionPaths) -> None:
    agent = _agent(places, "---\nname: a\ndescription: d\nmodel: inherit\n---\n").items["a"]
    assert (agent.tools, agent.denied, agent.model, agent.permission_mode, agent.max_turns) == (
        None,
        (),
        None,
        None,
        None,
    )


@pytest.mark.parametrize(
    ("front", "field"),
    [
        ("description: d", "name"),
        ("name: '!'\ndescription: d", "name"),
        ("name: -a\ndescription: d", "name"),
        ("name: a:b\ndescription: d", "name"),
        ("name: a", "description"),
        ("name: a\ndescription: ''", "description"),
        ("name: a\ndescription: d\ntools: 7", "tools"),
        ("name: [", ""),
        ("name: a\nname: b\ndescription: d", "name"),
    ],
)
def test_a_file_that_cannot_be_an_agent_is_refused_with_its_field(
    places: ExtensionPaths, front: str, field: str
) -> None:
    loaded = _agent(places, f"---\n{front}\n---\nBody\n")
    assert loaded.items == {}
    assert (field, "refused") in _reasons(loaded)


def test_an_agent_whose_tools_are_all_unknown_loads_with_none_of_them(places: ExtensionPaths) -> None:
    loaded = _agent(places, "---\nname: a\ndescription: d\ntools: Fly, raed, Bosh(git *)\n---\nBody\n")
    agent = loaded.items["a"]
    assert (agent.tools, agent.mcp) == ((), ())
    for kind in ("lead", "subagent"):
        assert tools_for(kind, agent.tools, agent.denied).names == ()
    (note,) = loaded.notes
    assert (note.field, note.line, note.verdict) == ("tools", 4, "refused"), "so a session says it when it begins"
    assert note.reason == (
        "none of these is a tool here: Fly, raed, Bosh(git *): the agent has none of its own; "
        "did you mean Read or Bash?"
    )


def test_a_list_of_tools_without_a_name_is_refused(places: ExtensionPaths) -> None:
    loaded = _agent(places, "---\nname: a\ndescription: d\ntools: [7]\n---\nBody\n")
    assert loaded.items == {}, "it cannot be known what it restricts"
    assert [note.reason for note in loaded.notes] == ["7 is not a name but a number"]


@pytest.mark.parametrize(
    ("field", "verdict"),
    [
        ("mcpServers: 7", "ignored"),
        ("color: red", "ignored"),
        ("frobnicate: yes", "ignored"),
        ("permissionMode: auto", "ignored"),
        ("permissionMode: wild", "ignored"),
        ("permissionMode: bypassPermissions", "refused"),
        ("isolation: remote", "ignored"),
        ("maxTurns: many", "ignored"),
        ("maxTurns: 0", "ignored"),
        ("maxTurns: true", "ignored"),
    ],
)
def test_a_field_that_is_not_honored_is_told(places: ExtensionPaths, field: str, verdict: str) -> None:
    loaded = _agent(places, f"---\nname: a\ndescription: d\n{field}\n---\n")
    assert _reasons(loaded) == [(field.partition(":")[0], verdict)]
    assert loaded.items["a"].permission_mode in {None, "default"}
    assert loaded.items["a"].max_turns is None


def test_an_agent_type_may_ask_for_worktrees(places: ExtensionPaths) -> None:
    loaded = _agent(places, "---\nname: a\ndescription: d\nisolation: worktree\n---\n")
    assert (loaded.items["a"].isolation, _reasons(loaded)) == ("worktree", [])


def test_a_person_may_lift_the_permissions_of_their_own_agents(places: ExtensionPaths) -> None:
    assert places.config is not None
    _write(places.config / "agents/a.md", "---\nname: a\ndescription: d\npermissionMode: bypassPermissions\n---\n")
    assert load_agents(places).items["a"].permission_mode == "bypassPermissions"


def test_ours_win_over_the_compatible_ones_and_near_over_far(places: ExtensionPaths) -> None:
    workspace, config, home = places.workspace, places.config, places.home
    assert workspace is not None
    assert config is not None
    assert home is not None
    order = [
        workspace / ".callboard/agents",
        config / "agents",
        workspace / ".claude/agents/deep/er",
        home / ".claude/agents",
    ]
    for number, folder in reversed(list(enumerate(order))):
        _write(folder / "x.md", f"---\nname: a\ndescription: d{number}\n---\n")
        loaded = load_agents(places)
        assert loaded.items["a"].description == f"d{number}"
        assert len(loaded.notes) == 3 - number
    assert f"is defined by {order[0] / 'x.md'} already" in str(loaded.notes[0])


def test_a_workspace_that_nobody_trusted_is_not_read_and_that_is_told(places: ExtensionPaths) -> None:
    assert places.workspace is not None
    untrusted = ExtensionPaths(places.workspace, places.config, places.home, trusted=False, bundled=False)
    _write(places.workspace / ".callboard/agents/a.md", "---\nname: a\ndescription: d\n---\n")
    _write(places.workspace / ".claude/skills/s/SKILL.md", "x")
    assert load_agents(untrusted).items == {}
    assert "until a person trusts" in str(load_agents(untrusted).notes[0])
    assert load_skills(untrusted).items == {}
    assert len(load_skills(untrusted).notes) == 1


def test_no_folder_is_no_error() -> None:
    assert load_agents(ExtensionPaths(bundled=False)).notes == ()
    nowhere = Path("/nowhere")
    assert load_skills(ExtensionPaths(nowhere, nowhere, nowhere, trusted=True, bundled=False)) == LoadedItems({})


# Skills


def _skill(places: ExtensionPaths, text: str, folder: str = "git") -> SkillLibrary:
    assert places.workspace is not None
    _write(places.workspace / ".callboard/skills" / folder / "SKILL.md", text)
    return SkillLibrary(places)


def test_a_skill_stands_in_the_catalogue_and_its_body_comes_when_asked(places: ExtensionPaths) -> None:
    library = _skill(places, "---\nname: git\ndescription: Use git\nwhen_to_use: always\n---\n# Git\n")
    (shown,) = library.catalogue()
    assert (shown.name, shown.description, shown.body) == ("git", "Use git always", None)
    loaded = library.load("git")
    assert loaded.body == "# Git\n"
    assert Path(loaded.folder).name == "git"
    assert library.notes == ()


def test_without_front_matter_the_folder_and_the_first_line_speak(places: ExtensionPaths) -> None:
    library = _skill(places, "\n# How we use git\n\nmore\n")
    (shown,) = library.catalogue()
    assert (shown.name, shown.description) == ("git", "How we use git")
    assert library.load("git").body == "\n# How we use git\n\nmore\n"
    assert _skill(places, "", "empty").catalogue()[0].description == "(no description)"


@pytest.mark.parametrize("front", ["name: [", "name: a\nname: b", "- a list"])
def test_broken_front_matter_is_told_and_the_body_still_loads(places: ExtensionPaths, front: str) -> None:
    library = _skill(places, f"---\n{front}\n---\nThe body.\n")
    loaded = library.load("git")
    assert loaded.body == "The body.\n"
    assert "front matter is broken" in loaded.problem
    assert len(library.notes) == 1


def test_front_matter_that_never_ends_is_all_body(places: ExtensionPaths) -> None:
    assert _skill(places, "---\nname: a\nThe body.\n").load("git").body == "---\nname: a\nThe body.\n"


def test_text_that_is_no_utf8_still_loads(places: ExtensionPaths) -> None:
    library = _skill(places, "x")
    assert places.workspace is not None
    (places.workspace / ".callboard/skills/git/SKILL.md").write_bytes(b"---\nname: git\n---\nCaf\xe9\n")
    assert library.load("git").body == "Caf�\n"
    assert "UTF-8" in library.load("git").problem


def test_an_unknown_name_lists_those_there_are(places: ExtensionPaths) -> None:
    with pytest.raises(ToolRefused, match="there is none"):
        SkillLibrary(places).load("x")
    library = _skill(places, "x")
    for name in ("hg", "../git", "git/", ""):
        with pytest.raises(ToolRefused, match="there are git"):
            library.load(name)


def test_a_skill_is_named_after_its_folder_and_found_by_the_name_in_its_front_matter(places: ExtensionPaths) -> None:
    _skill(places, "---\nname: git\ndescription: first\n---\nOne.\n", "a")
    library = _skill(places, "---\nname: tidy\ndescription: second\n---\nTwo.\n", "b")
    assert [shown.name for shown in library.catalogue()] == ["a", "b"]
    assert [(library.load(name).name, library.load(name).body) for name in ("a", "git", "tidy")] == [
        *(("a", "One.\n"), ("a", "One.\n"), ("b", "Two.\n")),
    ]
    assert [(one.name, one.aliases) for one in library.commands()] == [("a", ("git",)), ("b", ("tidy",))]
    library = _skill(places, "---\nname: git\ndescription: third\n---\n", "c")
    with pytest.raises(ToolRefused, match="no skill 'git'"):  # two skills claim it
        library.load("git")


def test_a_load_of_a_skill_counts_once(places: ExtensionPaths, tmp_path: Path) -> None:
    _skill(places, "---\ndescription: d\n---\nOne.\n", "a")
    kept = tmp_path / "uses.json"
    library = SkillLibrary(places, uses=SkillUses(kept))
    library.load("a")
    assert SkillUses(kept).counts() == {"a": 1}
    library.load("a")
    assert SkillUses(kept).counts() == {"a": 2}


@pytest.mark.parametrize(
    ("manifest", "more", "names"),
    [
        ('{"name": "p"}', {}, ["p:only"]),
        (None, {}, ["p:only"]),
        ('{"name": "p"}', {"skills/in/SKILL.md": "In."}, ["p:in"]),
        ('{"name": "p", "skills": ["./other"]}', {"other/in/SKILL.md": "In."}, ["p:in"]),
        ('{"name": "p", "skills": ["./"]}', {}, ["p:only"]),
        ('{"name": "p", "skills": "./own"}', {"own/SKILL.md": "---\nname: its\n---\nIn."}, ["p:its"]),
    ],
)
def test_the_folder_of_a_plugin_is_a_skill_if_it_names_no_other(
    tmp_path: Path, manifest: str | None, more: dict[str, str], names: list[str]
) -> None:
    """Each list is the one of Claude Code 2.1.332 for the same files."""
    root = tmp_path / "p"
    _write(root / "SKILL.md", "---\nname: only\n---\nDo it.\n")
    for path, text in more.items():
        _write(root / path, text)
    if manifest is not None:
        _write(root / ".claude-plugin/plugin.json", manifest)
    plugins, notes = read_plugins([root])
    assert not notes
    places = ExtensionPaths(tmp_path / "work", home=tmp_path / "home", bundled=False, plugins=plugins)
    assert [one.name for one in SkillLibrary(places).commands()] == names


def test_a_persons_compatible_skill_beats_the_workspaces(places: ExtensionPaths) -> None:
    assert places.workspace is not None
    assert places.home is not None
    _write(places.workspace / ".claude/skills/s/SKILL.md", "the workspace's")
    _write(places.home / ".claude/skills/s/SKILL.md", "the person's")
    assert SkillLibrary(places).load("s").body == "the person's"


@pytest.mark.parametrize("written", ["true", "yes", "on", "1", "True"])
def test_a_skill_for_persons_only_is_not_shown_to_a_model(places: ExtensionPaths, written: str) -> None:
    library = _skill(places, f"---\ndisable-model-invocation: {written}\n---\nx\n")
    assert library.catalogue() == []
    with pytest.raises(ToolRefused, match="for a person to start"):
        library.load("git")


def test_what_a_skill_grants_is_read_and_a_field_that_is_none_told(places: ExtensionPaths) -> None:
    library = _skill(places, "---\ndescription: d\nallowed-tools: Bash(rm:*)\nfrobnicate: 1\nlicense: MIT\n---\nx\n")
    assert [(note.field, note.verdict, note.line) for note in library.notes] == [("frobnicate", "ignored", 4)]
    assert library.load("git").allowed == ("Bash(rm:*)",)


@pytest.mark.parametrize("name", ["a b", "../x", "x" * 65, "a/b"])
def test_a_name_that_is_none_gives_way_to_the_folders(places: ExtensionPaths, name: str) -> None:
    library = _skill(places, f"---\nname: '{name}'\ndescription: d\n---\nx\n")
    assert [shown.name for shown in library.catalogue()] == ["git"]
    assert [note.field for note in library.notes] == ["name"]


def test_a_folder_whose_name_would_break_a_line_is_refused(places: ExtensionPaths) -> None:
    library = _skill(places, "x", "a\nb")
    assert library.catalogue() == []
    assert [note.verdict for note in library.notes] == ["refused"]


def test_a_long_description_is_cut_in_the_catalogue_and_told(places: ExtensionPaths) -> None:
    library = _skill(places, f"---\ndescription: {'x' * 3000}\n---\nx\n")
    assert len(library.catalogue()[0].description) == LONGEST_DESCRIPTION
    assert [note.field for note in library.notes] == ["description"]


def test_skills_are_scanned_again_when_files_change_and_only_then(places: ExtensionPaths) -> None:
    library = _skill(places, "---\ndescription: old\n---\nold\n")
    first = library.catalogue()
    assert library.catalogue()[0] is first[0]
    path = Path(first[0].folder) / "SKILL.md"
    path.write_text("---\ndescription: newer\n---\nnew\n")
    os.utime(path, ns=(1, 1))
    assert library.catalogue()[0].description == "newer"
    assert library.load("git").body == "new\n"
    path.unlink()
    assert library.catalogue() == []


# Links and files that are not regular


def test_a_link_out_of_the_folder_is_refused(places: ExtensionPaths, tmp_path: Path) -> None:
    assert places.workspace is not None
    secret = _write(tmp_path / "secret/SKILL.md", "secret")
    skills = places.workspace / ".callboard/skills"
    skills.mkdir(parents=True)
    (skills / "whole").symlink_to(secret.parent)
    _write(skills / "own/OTHER.md", "own")
    (skills / "own/SKILL.md").symlink_to(secret)
    (skills / "gone").mkdir()
    (skills / "gone/SKILL.md").symlink_to("nowhere")
    (skills / "round").mkdir()
    (skills / "round/SKILL.md").symlink_to("SKILL.md")
    library = SkillLibrary(places)
    assert library.catalogue() == []
    assert [note.verdict for note in library.notes] == ["refused"] * 4
    with pytest.raises(ToolRefused):
        library.load("own")


def test_a_link_inside_the_folder_is_followed(places: ExtensionPaths) -> None:
    library = _skill(places, "body")
    assert places.workspace is not None
    skills = places.workspace / ".callboard/skills"
    (skills / "git").rename(skills / "kept.d")
    (skills / "kept.d/SKILL.md").rename(skills / "kept.d/text.md")
    (skills / "again").mkdir()
    (skills / "again/SKILL.md").symlink_to("../kept.d/text.md")
    assert [shown.name for shown in library.catalogue()] == ["again"]


def test_a_workspace_folder_that_is_itself_a_link_out_is_refused_and_a_persons_is_not(
    places: ExtensionPaths, tmp_path: Path
) -> None:
    assert places.workspace is not None
    assert places.config is not None
    text = "---\nname: a\ndescription: d\n---\n"
    _write(tmp_path / "dotfiles/agents/a.md", text)
    places.config.mkdir()
    (places.config / "agents").symlink_to(tmp_path / "dotfiles/agents")
    assert list(load_agents(places).items) == ["a"]
    (places.config / "agents").unlink()
    (places.workspace / ".callboard").symlink_to(tmp_path / "dotfiles")
    loaded = load_agents(places)
    assert loaded.items == {}
    assert "a link leads out" in str(loaded.notes[0])


def test_a_pipe_or_a_giant_in_place_of_a_file_is_refused_without_waiting(places: ExtensionPaths) -> None:
    assert places.workspace is not None
    folder = places.workspace / ".callboard/skills/pipe"
    folder.mkdir(parents=True)
    os.mkfifo(folder / "SKILL.md")
    library = _skill(places, "x" * (LARGEST_FILE + 1), "giant")
    assert library.catalogue() == []
    assert [note.reason for note in library.notes] == ["is larger than 1,000,000 bytes", "is not a regular file"]


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(text=st.text(max_size=200) | st.text(alphabet="-\n: ab[]{}'\"#", max_size=80).map("---\n".__add__))
def test_no_text_stops_the_loading_of_the_others(places: ExtensionPaths, text: str) -> None:
    assert places.workspace is not None
    for kind in ("agents/a.md", "skills/odd/SKILL.md"):
        path = places.workspace / ".callboard" / kind
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text.encode("utf-8", "surrogatepass"))
    _write(places.workspace / ".callboard/agents/good.md", "---\nname: good\ndescription: d\n---\n")
    assert "good" in load_agents(places).items
    library = SkillLibrary(places)
    assert all(library.load(shown.name).body is not None for shown in library.catalogue())


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("a, b", ("a", "b")),
        ("Agent(x, y), Read", ("Agent(x, y)", "Read")),
        (["a", " b ", "", 3], ("a", "b", "3")),
        ("", ()),
        (None, ()),
        (7, ()),
        ("a)), b", ("a))", "b")),
    ],
)
def test_a_list_of_words_is_written_in_two_ways(value: object, expected: tuple[str, ...]) -> None:
    assert word_list(value) == expected


def test_names_in_other_scripts_and_with_blanks_are_used(places: ExtensionPaths) -> None:
    assert places.workspace is not None
    for path in ("commands/审查.md", "commands/zwei Worte.md", "skills/prüfen/SKILL.md"):
        _write(places.workspace / ".claude" / path, "Do it.\n")
    assert {"审查", "zwei-Worte", "prüfen"} <= set(load_skills(places).items)
    agents = _agent(places, "---\nname: 审查员\ndescription: d\n---\nx\n", ".claude/agents/reviewer.md")
    assert list(agents.items) == ["reviewer"]
    assert [(note.field, note.verdict) for note in agents.notes] == [("name", "honored")]


def test_an_agent_of_a_plugin_with_broken_front_matter_is_named_after_its_file(tmp_path: Path) -> None:
    broken = "---\nname: [scout\ndescription: Finds\n---\n# You scout.\n\nReport places.\n"
    _write(tmp_path / "acme/agents/deep/finder.md", broken)
    _write(tmp_path / "acme/agents/open.md", "---\nname: open\nYou are open.\n")
    _write(tmp_path / "home/.claude/agents/finder.md", broken)
    plugins, _ = read_plugins([tmp_path / "acme"])
    loaded = load_agents(ExtensionPaths(tmp_path / "work", home=tmp_path / "home", bundled=False, plugins=plugins))
    assert list(loaded.items) == ["acme:deep:finder"]
    agent = loaded.items["acme:deep:finder"]
    assert (agent.description, agent.instructions) == ("You scout.", "# You scout.\n\nReport places.")
    told = {note.path.removeprefix(f"{tmp_path}/"): note for note in loaded.notes}
    assert {path: note.verdict for path, note in told.items()} == {
        "home/.claude/agents/finder.md": "refused",
        "acme/agents/deep/finder.md": "ignored",
        "acme/agents/open.md": "refused",
    }
    assert "so only its text counts" in told["acme/agents/deep/finder.md"].reason
    assert told["acme/agents/deep/finder.md"].line > 1


def test_a_manifest_names_its_commands(tmp_path: Path) -> None:
    commands = {
        "about": {"source": "./README.md", "description": "Says what it does"},
        "again": "./README.md",
        "inline": {"content": "Say hello."},
        "gone": {"source": "./gone.md"},
    }
    root = tmp_path / "acme"
    _write(root / ".claude-plugin/plugin.json", json.dumps({"name": "acme", "commands": commands}))
    _write(root / "README.md", "---\ndescription: Explains\n---\nExplain $ARGUMENTS.\n")
    _write(root / "commands/usual.md", "Not used.\n")
    plugins, notes = read_plugins([root])
    told = [note.reason.partition(":")[0] for note in notes]
    assert told == ["about", "inline", "./gone.md"]
    loaded = load_skills(ExtensionPaths(tmp_path / "work", bundled=False, plugins=plugins))
    assert list(loaded.items) == ["acme:about", "acme:again"]
    about = loaded.items["acme:about"]
    assert (about.text.kind, about.text.description, about.body()) == ("command", "Explains", "Explain $ARGUMENTS.\n")
    _write(root / ".claude-plugin/plugin.json", json.dumps({"name": "acme", "commands": {"about": {"source": 3}}}))
    plugins, notes = read_plugins([root])
    assert (plugins, "about: write a path" in notes[0].reason) == ((), True)

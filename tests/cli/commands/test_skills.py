"""`callboard skills`, slash commands of a run, and the list of skills for clients."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from callboard.cli.commands.root import cli
from callboard.cli.headless.messages import PROMPT_COMMANDS

SCENARIO = """
agents:
  lead:
    - {when: {contains: Fix ticket 42}, reply: Fixed., repeat: forever}
    - {reply: Nothing., repeat: forever}
"""


@pytest.fixture
def workspace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    home, work = tmp_path / "home", tmp_path / "work"
    home.mkdir()
    work.mkdir()
    monkeypatch.setenv("HOME", str(home))
    for name in ("CONFIG", "STATE", "DATA"):
        monkeypatch.setenv(f"XDG_{name}_HOME", str(home / name.lower()))
    monkeypatch.delenv("CALLBOARD_TOOL", raising=False)
    (work / "s.yaml").write_text(SCENARIO)
    return work


def _call(workspace: Path, *line: str) -> Result:
    return CliRunner().invoke(cli, [*line, "-C", str(workspace)], standalone_mode=False, catch_exceptions=True)


def _write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return path


def test_a_list_tells_where_each_comes_from_who_starts_it_and_what_is_hidden(workspace: Path) -> None:
    mine = _write(Path.home() / ".claude/skills/run-a-team/SKILL.md", "---\ndescription: Mine\n---\nx\n")
    _write(Path.home() / ".claude/commands/go.md", "---\ndisable-model-invocation: yes\n---\nGo $ARGUMENTS\n")
    plugin = workspace.parent / "plug"
    _write(plugin / ".claude-plugin/plugin.json", '{"name": "plug"}')
    _write(plugin / "skills/a/SKILL.md", "---\ndescription: Of a plugin\nuser-invocable: false\n---\nx\n")
    rows = json.loads(_call(workspace, "skills", "list", "--json", "--plugin", str(plugin)).stdout)
    found = {(row["name"], row["source"]): row for row in rows}
    assert found["run-a-team", "bundled"]["shadowed_by"] == str(mine)
    assert (found["go", "person"]["kind"], found["go", "person"]["started_by"]) == ("command", "person")
    assert found["plug:a", "plugin plug"]["started_by"] == "model"


def test_show_tells_the_line_of_each_field_what_runs_and_what_is_beside_it(workspace: Path) -> None:
    path = _write(
        Path.home() / ".claude/skills/look/SKILL.md", "---\nname: look\nmodel: x\nfoo: 1\n---\n- now: !`git log -1`\n"
    )
    _write(path.parent / "scripts/a.sh", "true\n")
    shown = json.loads(_call(workspace, "skills", "show", "look", "--json").stdout)[0]
    assert {one["name"]: one["where"] for one in shown["fields"]}["model"] == f"{path}:3"
    assert (shown["commands"], shown["files"]) == (["git log -1"], ["scripts/a.sh"])
    assert shown["notes"] == [f"{path}:4: foo: ignored: is not a field of a skill"]
    assert "unknown skill 'nix'" in str(_call(workspace, "skills", "show", "nix").exception)


def test_a_new_skill_passes_the_check_and_is_never_overwritten(workspace: Path) -> None:
    assert _call(workspace, "skills", "new", "my-skill").exception is None
    path = workspace / ".callboard/skills/my-skill/SKILL.md"
    assert _call(workspace, "skills", "check", str(path.parent)).return_value in (None, 0)
    assert _call(workspace, "skills", "check", str(path)).return_value in (None, 0), "the file itself"
    other = path.with_name("other.md")
    other.write_text(path.read_text())
    refused = _call(workspace, "skills", "check", str(other))
    assert "give the folder of a skill, or its SKILL.md" in str(refused.exception)
    path.write_text("mine")
    assert "already exists" in str(_call(workspace, "skills", "new", "my-skill").exception)
    assert path.read_text() == "mine"
    assert "is not a valid name of a skill" in str(_call(workspace, "skills", "new", "My Skill").exception)


@pytest.mark.parametrize(
    ("text", "says", "code"),
    [
        ("---\nname: a\ndescription: d\n---\nDo it.\n", "passes", 0),
        ("---\nname: b\ndescription: d\n---\nDo it.\n", ":2: name: 'b' is not the name of its folder, 'a'", 1),
        (
            "---\nname: a\ndescription: d\nmodel: haiku\n---\nDo it.\n",
            ":4: model: is not a field of the specification",
            1,
        ),
        ("Do it.\n", ":1: there is no front matter", 1),
        ("---\nname: [\n---\nDo it.\n", "is not valid YAML", 1),
    ],
)
def test_a_check_tells_file_line_and_field_by_its_exit_code(workspace: Path, text: str, says: str, code: int) -> None:
    _write(workspace / "a/SKILL.md", text)
    told = CliRunner().invoke(cli, ["skills", "check", "a", "-C", str(workspace)])
    assert says in told.output
    assert told.exit_code == code


def test_our_own_fields_pass_where_somebody_wants_them_to(workspace: Path) -> None:
    _write(workspace / "a/SKILL.md", "---\nname: a\ndescription: d\nmodel: haiku\n---\nDo it.\n")
    told = CliRunner().invoke(cli, ["skills", "check", "--ours", "a", "-C", str(workspace)])
    assert (told.exit_code, "a/SKILL.md:4: model" in told.output) == (0, True)


def test_a_run_takes_a_slash_command_and_fails_where_it_cannot_be_done(workspace: Path) -> None:
    _write(Path.home() / ".claude/skills/fix/SKILL.md", "---\ndescription: d\n---\nFix ticket $0\n")
    _write(Path.home() / ".claude/skills/bad/SKILL.md", "---\ndescription: d\n---\n!`touch made`\n")
    run = ("run", "--model", f"rehearsal:{workspace / 's.yaml'}")
    done = _call(workspace, *run, "/fix 42")
    assert (done.return_value, "Fixed." in done.output) == (0, True)
    failed = _call(workspace, *run, "/bad")
    assert failed.return_value == 1
    assert "/bad: its command `touch made` did not run to its end" in failed.output


def test_a_client_is_told_what_may_be_typed(workspace: Path) -> None:
    _write(Path.home() / ".claude/commands/go.md", "---\nargument-hint: <where>\n---\nGo $ARGUMENTS\n")
    run = (
        "run",
        "--model",
        f"rehearsal:{workspace / 's.yaml'}",
        "-C",
        str(workspace),
        "--output-format",
        "stream-json",
    )
    lines = CliRunner().invoke(cli, [*run, "--verbose", "/go home"]).stdout.splitlines()
    begun = next(one for one in map(json.loads, lines) if one.get("subtype") == "init")
    assert begun["skills"] == ["keep-a-schedule", "run-a-team", "write-a-plan"]
    assert begun["slash_commands"] == ["go", *begun["skills"], *(command.name for command in PROMPT_COMMANDS)]


def test_a_run_may_have_no_skills_and_no_commands_of_files(workspace: Path) -> None:
    _write(Path.home() / ".claude/commands/fix.md", "Fix ticket $ARGUMENTS\n")
    line = ("run", "--model", f"rehearsal:{workspace / 's.yaml'}", "/fix 42")
    assert _call(workspace, *line).stdout == "Fixed.\n"
    ran = _call(workspace, *line, "--disable-slash-commands")
    assert (ran.return_value, ran.stdout) == (1, "")
    assert "there is no command /fix" in ran.stderr
    ran = _call(workspace, *line, "--disable-slash-commands", "--output-format", "stream-json")
    init = next(json.loads(row) for row in ran.stdout.splitlines() if '"init"' in row)
    assert (init["skills"], "fix" in init["slash_commands"]) == ([], False)


@pytest.mark.parametrize("rule", ["Skill(b)", "Skill(tidy)", "Skill(*idy)"])
@pytest.mark.parametrize("name", ["b", "tidy"])
def test_a_rule_names_a_skill_by_any_of_its_names(workspace: Path, rule: str, name: str) -> None:
    _write(Path.home() / ".claude/skills/b/SKILL.md", "---\nname: tidy\ndescription: d\n---\nTidy up.\n")
    text = """
agents:
  lead:
    - reply: [{tool_use: {name: load_skill, input: {name: NAME}}}]
    - {when: {contains: Tidy up}, reply: Loaded.}
    - {reply: Refused.}
"""
    scenario = _write(workspace / "load.yaml", text.replace("NAME", name))
    line = ("run", "--model", f"rehearsal:{scenario}", "Go.")
    assert _call(workspace, *line).stdout == "Loaded.\n"
    assert _call(workspace, *line, "--disallowedTools", rule).stdout == "Refused.\n"

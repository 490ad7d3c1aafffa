"""`callboard plugin`: installation from folders, git repositories and marketplaces, and their effect on sessions."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.cli.commands.command import Command
from tests.cli.repl.screen import Screen

HOOK = {
    "PreToolUse": [{"matcher": "Bash", "hooks": [{"type": "command", "command": "${CLAUDE_PLUGIN_ROOT}/check.sh"}]}]
}


@pytest.fixture
def command(tmp_path: Path) -> Command:
    return Command(tmp_path)


def write(folder: Path, **files: str) -> None:
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def plugin_in(folder: Path, version: str = "1.2.0", name: str = "acme") -> Path:
    files = {
        ".claude-plugin/plugin.json": json.dumps({"name": name, "version": version, "description": "Acme's checks"}),
        "agents/scout.md": "---\nname: scout\ndescription: Finds places\ntools: Bash\n---\nYou scout.\n",
        "skills/fmt/SKILL.md": "---\nname: fmt\ndescription: Formats\n---\nThe day is !`date`\n",
        "hooks/hooks.json": json.dumps({"hooks": HOOK}),
        ".mcp.json": json.dumps({"mcpServers": {"db": {"command": "acme-db", "args": ["--all", "${ACME_KEY}"]}}}),
        "check.sh": f"#!/bin/sh\necho checked > '{folder.parent}/hook-ran'\n",
        "marker": version,
    }
    write(folder, **files)
    (folder / "check.sh").chmod(0o755)
    return folder


def git(folder: Path, *arguments: str) -> str:
    who = ("-c", "user.name=a", "-c", "user.email=a@b", "-c", "protocol.file.allow=always")
    done = subprocess.run(["git", *who, *arguments], cwd=folder, capture_output=True, text=True, check=True)
    return done.stdout.strip()


def repository_in(folder: Path) -> Path:
    plugin_in(folder)
    git(folder, "init", "-q", "-b", "main")
    git(folder, "add", ".")
    git(folder, "commit", "-qm", "first")
    git(folder, "tag", "v1")
    plugin_in(folder, "2.0.0")
    git(folder, "commit", "-qam", "second")
    return folder


def listed(command: Command) -> dict[str, dict[str, Any]]:
    return {row["name"]: row for row in json.loads(command.run_inline("plugin", "list", "--json").out)}


def install(command: Command, source: object, *options: str) -> str:
    ran = command.run_inline("plugin", "install", str(source), "--yes", *options)
    assert ran.code == 0, ran
    return ran.err + ran.out


def failure(command: Command, *args: str) -> str:
    ran = command.run_inline("plugin", *args)
    assert ran.code == 2, ran
    return ran.err


def test_a_folder_is_shown_copied_and_used_by_every_session(command: Command, tmp_path: Path) -> None:
    source = plugin_in(tmp_path / "acme")
    shown = install(command, source)
    for line in ("acme:scout", "acme:fmt", "PreToolUse(Bash): ${CLAUDE_PLUGIN_ROOT}/check.sh", "db: acme-db --all"):
        assert line in shown
    assert "command   date" in shown
    row = listed(command)["acme"]
    assert (row["version"], row["source"], row["enabled"]) == ("1.2.0", str(source), True)
    assert (row["agents"], row["skills"], row["hooks"], row["servers"]) == (["acme:scout"], ["acme:fmt"], 1, 1)
    (source / "agents" / "scout.md").write_text("---\nname: spy\n---\nYou spy.\n")
    assert "You scout." in command.run_inline("agents", "show", "acme:scout").out
    assert "acme:fmt" in command.run_inline("skills", "list").out
    assert "acme-db --all" in command.run_inline("mcp", "list").out
    assert "acme" in command.run_inline("doctor").out


_JSON = ("--output-format", "stream-json", "--verbose")
SCENARIO = """
agents:
  lead:
    - when: {contains: go}
      reply:
        - tool_use: {name: bash, input: {command: "cat PATH/marker > copy.txt"}}
        - tool_use: {name: read_file, input: {path: PATH/marker}}
        - tool_use: {name: bash, input: {command: "touch PATH/made"}}
    - when: {result_of: bash}
      reply: Done.
    - otherwise: true
      reply: I hear you.
"""


@pytest.mark.slow
def test_a_session_runs_its_hooks_and_reads_its_files_but_does_not_change_them(
    command: Command, tmp_path: Path
) -> None:
    install(command, plugin_in(tmp_path / "acme"))
    folder = Path(listed(command)["acme"]["path"])
    model = command.scenario(SCENARIO.replace("PATH", str(folder)))
    ran = command.run_inline("run", "--model", model, "--permission-mode", "bypassPermissions", *_JSON, "go")
    assert ran.code == 0, ran
    assert "1\\t1.2.0" in ran.out
    assert (tmp_path / "hook-ran").read_text() == "checked\n"
    assert not (folder / "made").exists()
    assert (command.workspace / "copy.txt").read_text() == "1.2.0"


def test_the_switch_and_the_removal_count_for_the_next_session(command: Command, tmp_path: Path) -> None:
    install(command, plugin_in(tmp_path / "acme"))
    folder = Path(listed(command)["acme"]["path"])
    assert "do not load it" in command.run_inline("plugin", "disable", "acme").out
    assert listed(command)["acme"]["enabled"] is False
    assert command.run_inline("agents", "show", "acme:scout").code == 2
    install(command, plugin_in(tmp_path / "acme", "2.0.0"))
    assert listed(command)["acme"]["enabled"] is False
    command.run_inline("plugin", "enable", "acme")
    assert command.run_inline("agents", "show", "acme:scout").code == 0
    assert command.run_inline("plugin", "remove", "acme").code == 0
    assert listed(command) == {}
    assert not folder.exists()
    assert "acme" in failure(command, "remove", "acme")


def test_a_setting_overrides_the_switch_and_that_is_told(command: Command, tmp_path: Path) -> None:
    install(command, plugin_in(tmp_path / "acme"))
    write(tmp_path / ".claude", **{"settings.json": json.dumps({"enabledPlugins": {"acme": False}})})
    assert listed(command)["acme"]["enabled"] is False
    assert "still turns it off" in command.run_inline("plugin", "enable", "acme").out


def test_the_replaced_version_stays_until_the_next_installation(command: Command, tmp_path: Path) -> None:
    paths: list[Path] = []
    for version in ("1", "2", "3"):
        install(command, plugin_in(tmp_path / "acme", version))
        paths.append(Path(listed(command)["acme"]["path"]))
    assert [path.exists() for path in paths] == [False, True, True]
    assert "installed already" in install(command, tmp_path / "acme")


@pytest.mark.slow(keep=1)
@pytest.mark.parametrize(("suffix", "version"), [("", "2.0.0"), ("#v1", "1.2.0"), ("#main", "2.0.0")])
def test_a_reference_of_a_repository_is_installed(command: Command, tmp_path: Path, suffix: str, version: str) -> None:
    repository = repository_in(tmp_path / "origin")
    git(tmp_path, "clone", "-q", "--bare", str(repository), "acme.git")
    for source in (f"{tmp_path}/acme.git{suffix}", f"file://{repository}{suffix}"):
        install(command, source)
        row = listed(command)["acme"]
        assert (row["version"], row["source"]) == (version, source)
        assert not (Path(row["path"]) / ".git").exists()
    commit = git(repository, "rev-parse", "v1")
    install(command, f"{repository}#{commit}")
    assert listed(command)["acme"]["version"] == "1.2.0"


def test_a_repository_over_ssh_uses_the_persons_ssh_without_a_question(command: Command, tmp_path: Path) -> None:
    repository = repository_in(tmp_path / "origin")
    program = f'#!/bin/sh\necho "$@" > {tmp_path}/arguments\nfor last; do :; done\neval "$last"\n'
    write(tmp_path / "bin", ssh=program)
    (tmp_path / "bin" / "ssh").chmod(0o755)
    path = f"{tmp_path}/bin:{command.env['PATH']}"
    ran = command.run_inline("plugin", "install", f"git@example.invalid:{repository}#v1", "--yes", PATH=path)
    assert ran.code == 0, ran
    assert "-oBatchMode=yes" in (tmp_path / "arguments").read_text()
    assert listed(command)["acme"]["version"] == "1.2.0"


def test_nothing_of_a_repository_runs_and_submodules_stay_away(command: Command, tmp_path: Path) -> None:
    repository = repository_in(tmp_path / "origin")
    trap = tmp_path / "trap"
    write(tmp_path, trap=f"#!/bin/sh\ntouch {tmp_path}/trapped\ncat\n")
    trap.chmod(0o755)
    git(tmp_path, "init", "-q", "module")
    git(tmp_path / "module", "commit", "-q", "--allow-empty", "-m", "x")
    git(repository, "submodule", "add", "-q", str(tmp_path / "module"), "module")
    write(repository, **{".gitattributes": "* filter=trap\n"})
    git(repository, "add", ".gitattributes")
    git(repository, "commit", "-qm", "third")
    for name in ("core.fsmonitor", "core.sshCommand", "uploadpack.packObjectsHook", "filter.trap.smudge"):
        git(repository, "config", name, str(trap))
    for hook in ("post-checkout", "reference-transaction", "post-index-change"):
        (repository / ".git" / "hooks" / hook).write_text(trap.read_text())
        (repository / ".git" / "hooks" / hook).chmod(0o755)
    install(command, f"{repository}#main")
    assert not (tmp_path / "trapped").exists()
    path = Path(listed(command)["acme"]["path"])
    assert (path / "marker").read_text() == "2.0.0"
    assert not any((path / "module").glob("*"))


def marketplace_in(folder: Path, **sources: object) -> Path:
    plugins = [{"name": name, "source": source} for name, source in sources.items()]
    plugins.append({"name": "bare", "source": "./bare", "strict": False, "version": "7", "agents": ["./crew/one.md"]})
    write(folder, **{".claude-plugin/marketplace.json": json.dumps({"name": "shop", "plugins": plugins})})
    write(folder / "bare", **{"crew/one.md": "---\nname: one\ndescription: One\n---\nYou are one.\n"})
    plugin_in(folder / "plugins" / "acme")
    return folder


def test_plugins_of_a_marketplace_are_installed_by_name(command: Command, tmp_path: Path) -> None:
    repository = repository_in(tmp_path / "origin")
    remote = {"source": "url", "url": f"file://{repository}", "ref": "v1"}
    market = marketplace_in(tmp_path / "market", acme="./plugins/acme", remote=remote, out="./../origin")
    assert "bare" in command.run_inline("plugin", "marketplace", "add", str(market)).out
    assert json.loads(command.run_inline("plugin", "marketplace", "list", "--json").out) == [
        {"name": "shop", "source": str(market)}
    ]
    for name in ("acme", "bare"):
        install(command, f"{name}@shop")
    rows = listed(command)
    assert (rows["acme@shop"]["source"], rows["bare@shop"]["version"]) == (str(market), "7")
    assert rows["bare@shop"]["agents"] == ["bare:one"]
    install(command, f"remote@{market}/.claude-plugin/marketplace.json")
    assert listed(command)["acme@shop"]["version"] == "1.2.0"
    assert "leads out of" in failure(command, "install", "out@shop", "--yes")
    assert "acme, bare" in failure(command, "install", "nothing@shop", "--yes")
    assert "shop" in failure(command, "install", "acme@shops", "--yes")
    assert "plugin marketplace add" in failure(command, "install", str(market), "--yes")
    assert command.run_inline("plugin", "marketplace", "remove", "shop").code == 0
    assert set(listed(command)) == {"acme@shop", "bare@shop"}


def test_a_marketplace_in_a_repository_may_not_name_paths_of_this_machine(command: Command, tmp_path: Path) -> None:
    market = marketplace_in(tmp_path / "market", local={"source": "url", "url": f"file://{tmp_path}/private"})
    git(market, "init", "-q", "-b", "main")
    git(market, "add", ".")
    git(market, "commit", "-qm", "x")
    assert command.run_inline("plugin", "marketplace", "add", f"file://{market}").code == 0
    install(command, "bare@shop")
    assert "use https or ssh" in failure(command, "install", "local@shop", "--yes")


def test_links_are_copied_and_may_not_lead_out(command: Command, tmp_path: Path) -> None:
    source = plugin_in(tmp_path / "acme")
    (source / "agents" / "linked.md").symlink_to(source / "agents" / "scout.md")
    (source / "more").symlink_to("skills")
    install(command, source)
    path = Path(listed(command)["acme"]["path"])
    assert not any(file.is_symlink() for file in path.rglob("*"))
    assert (path / "more" / "fmt" / "SKILL.md").is_file()
    write(tmp_path, secret="secret")
    (source / "link").symlink_to(tmp_path / "secret")
    assert "leads out of" in failure(command, "install", str(source), "--yes")
    (source / "link").unlink()
    (source / "link").symlink_to(".")
    assert "a folder that contains it" in failure(command, "install", str(source), "--yes")


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("http://example.invalid/x.git", "use https, ssh, or a path"),
        ("ext::sh -c true", "no address of a git repository"),
        ("https://me:token@example.invalid/x.git", "a password or a token"),
        ("./empty", "is not a plugin"),
        ("./empty#-x", "is not a branch"),
        ("./empty#main", "git cannot fetch"),
        ("./nothing", "there is no such folder"),
    ],
)
def test_a_source_that_cannot_be_used_says_so(command: Command, source: str, reason: str) -> None:
    (command.workspace / "empty").mkdir()
    assert reason in failure(command, "install", source, "--yes")
    assert listed(command) == {}


def test_a_folder_is_checked_without_an_installation(command: Command, tmp_path: Path) -> None:
    folder = plugin_in(tmp_path / "acme")
    for path in (folder, folder / ".claude-plugin/plugin.json"):
        right = command.run("plugin", "validate", str(path))
        assert (right.code, right.out) == (0, "plugin acme 1.2.0: 1 agent, 1 skill, 1 hook, 1 server\n"), right.err
    broken = {"PreToolUse": [{"hooks": [{"type": "command"}, {"type": "http", "url": "https://example.org"}]}]}
    write(folder, **{"hooks/hooks.json": json.dumps({"hooks": HOOK | broken})})
    refused = command.run("plugin", "validate", str(folder))
    assert (refused.code, refused.out.splitlines()[-1]) == (1, "plugin acme 1.2.0: 1 agent, 1 skill, 1 hook, 1 server")
    lost = "---\nname: lost\n---\n"
    write(folder, **{"agents/lost.md": lost, "hooks/hooks.json": "{", ".mcp.json": '{"mcpServers": {"db": 3}}'})
    wrong = command.run("plugin", "validate", str(folder))
    assert wrong.code == 1
    for file in ("agents/lost.md", "hooks/hooks.json", ".mcp.json"):
        assert any(line.startswith(f"{file}") for line in wrong.out.splitlines()), wrong.out
    installed = command.run("plugin", "install", str(folder), "--yes")
    assert "hooks/hooks.json" in installed.err + installed.out, "an installation shows it as well"
    command.run("plugin", "remove", "acme")
    assert command.run("plugin", "list").out.startswith("no plugin is installed")
    assert not (tmp_path / "hook-ran").exists()


def test_a_marketplace_is_checked_and_what_is_none_is_refused(command: Command, tmp_path: Path) -> None:
    market = tmp_path / "market"
    write(market, **{".claude-plugin/marketplace.json": json.dumps({"name": "m", "plugins": [{"name": "acme"}]})})
    for path in (market, market / ".claude-plugin/marketplace.json"):
        assert command.run("plugin", "validate", str(path)).out == "marketplace m: 1 plugin\n"
    write(market, **{".claude-plugin/marketplace.json": json.dumps({"name": "m", "plugins": [{}]})})
    wrong = command.run("plugin", "validate", str(market))
    assert (wrong.code, "plugins[0].name" in wrong.err) == (2, True)
    empty = tmp_path / "empty"
    empty.mkdir()
    assert "is not a plugin" in command.run("plugin", "validate", str(empty)).err
    assert command.run("plugin", "validate", str(tmp_path / "missing")).code == 2


def test_only_a_person_changes_plugins(command: Command, tmp_path: Path) -> None:
    source = str(plugin_in(tmp_path / "acme"))
    install(command, source)
    changes = (
        ("install", source, "--yes"),
        *((verb, "acme") for verb in ("enable", "disable", "remove")),
        *(("marketplace", verb, source) for verb in ("add", "remove")),
    )
    for change in changes:
        ran = command.run_inline("plugin", *change, CALLBOARD_TOOL="1")
        assert ran.code == 2
        assert "is for a person" in ran.err
    assert "add --yes" in failure(command, "install", str(plugin_in(tmp_path / "acme", "2")))
    assert listed(command)["acme"]["version"] == "1.2.0"


def test_the_person_is_asked_at_a_terminal(command: Command, tmp_path: Path) -> None:
    source = str(plugin_in(tmp_path / "acme"))
    for answer, result in (("n", "not installed"), ("y", "installed acme")):
        screen = Screen(command, "plugin", "install", source)
        screen.wait("Install exactly this")
        screen.type(answer, "Enter")
        screen.wait(result)
        screen.close()
        assert ("acme" in listed(command)) == (answer == "y")


@pytest.mark.slow
def test_a_killed_installation_leaves_the_old_plugin_or_the_new_one(command: Command, tmp_path: Path) -> None:
    source = plugin_in(tmp_path / "acme", "1")
    install(command, source)
    plugin_in(source, "2")
    child = [sys.executable, "-m", "tests.cli.commands.plugin_kills", str(source)]
    environ = {**command.env, "PYTHONPATH": str(Path(__file__).parents[3])}
    ran = subprocess.run(child, capture_output=True, text=True, cwd=command.workspace, env=environ, check=False)
    records = [json.loads(line) for line in ran.stderr.splitlines() if line.startswith("{")]
    assert records, ran
    assert records[-1] == {"killed": False, "code": 0, "version": "2", "marker": "2"}
    killed = records[:-1]
    assert len(killed) > 20
    assert all(record["killed"] and record["version"] == record["marker"] for record in killed)
    assert {record["version"] for record in killed} == {"1", "2"}
    store = Path(command.env["XDG_DATA_HOME"]) / "callboard" / "plugins"
    assert sorted(path.name for path in store.iterdir()) == [".lock", "acme"]


def test_a_folder_that_a_manifest_names_beside_the_usual_one_counts_once(command: Command, tmp_path: Path) -> None:
    folder = plugin_in(tmp_path / "acme")
    paths = {"skills": ["./skills", "./skills/fmt"], "agents": ["./agents", "./agents/scout.md"]}
    write(folder, **{".claude-plugin/plugin.json": json.dumps({"name": "acme", **paths})})
    checked = command.run_inline("plugin", "validate", str(folder))
    assert (checked.code, checked.err) == (0, ""), checked


def test_events_outside_of_the_field_hooks_are_told(command: Command, tmp_path: Path) -> None:
    folder = plugin_in(tmp_path / "acme")
    write(folder, **{"hooks/hooks.json": json.dumps(HOOK)})
    checked = command.run_inline("plugin", "validate", str(folder))
    assert checked.code == 1
    assert "hooks/hooks.json: PreToolUse: ignored: is an event: it counts only inside of `hooks`" in checked.out

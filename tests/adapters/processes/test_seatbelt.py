"""The profile of a command for the sandbox of macOS, read back: what it allows, and that no path can add a rule to it.

No test here runs a profile: `sandbox-exec` exists on macOS only.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.adapters.processes.cage import Cage, create_folders
from tests.adapters.processes.seatbelt_reader import allows, read_profile, shape, strings

from callboard.adapters.processes.confinement import Confinement
from callboard.adapters.processes.sandbox.machine import Machine, examine_seatbelt
from callboard.adapters.processes.sandbox.opened_paths import find_openings
from callboard.adapters.processes.sandbox.proxy import SessionProxies
from callboard.adapters.processes.sandbox.restrictions import (
    PROTECTED_NAMES,
    find_command_folder,
    landlock_restrictions,
    seatbelt_rules,
)
from callboard.adapters.processes.sandbox.sandbox import NetworkReach, Sandbox, SandboxLevel, choose
from callboard.adapters.processes.sandbox.seatbelt import SeatbeltArea, SeatbeltRules, quote, seatbelt_profile
from callboard.adapters.processes.tool_ancestry import SEATBELT_MARK
from callboard.types.errors import ToolRefused
from callboard.types.records import PathGrant

MAC = Machine(seatbelt="/usr/bin/sandbox-exec")
PATHS = st.text(st.characters(exclude_categories=("Cs", "Cc")), min_size=1, max_size=30).map(lambda text: "/" + text)
HOSTILE = ('/w") (allow default) ("', "/w\\", '/w\\"', "/w)(allow file-write* (subpath /))", "/w; (", '/w#"', "/ü/ñ 🐍")


def harmless(path: str) -> str:
    """Return a path with as many parts, and with as plain a name."""
    plain = re.fullmatch(r"[A-Za-z0-9._-]+", os.path.split(path)[1])
    return "/a" * (path.count("/") - 1) + ("/a" if plain else "/é")


@given(st.lists(PATHS | st.sampled_from(HOSTILE), min_size=5, max_size=5))
def test_no_path_can_add_a_rule(paths: list[str]) -> None:
    def profile_of(words: Sequence[str]) -> str:
        read, write, kept, pinned, base = words
        areas = (SeatbeltArea(read, (kept,)),), (SeatbeltArea(write, (pinned,)),)
        absent = ((base, ".mcp.json"),)
        return seatbelt_profile(SeatbeltRules(*areas, read_only=(kept,), pinned=(pinned,), absent=absent))

    read_back = read_profile(profile_of(paths))
    plain = read_profile(profile_of([harmless(path) for path in paths]))
    rule = "file-read-metadata"  # one filter for each different folder above a path, so that their number differs
    assert [shape(each) for each in read_back if rule not in each] == [
        shape(each) for each in plain if rule not in each
    ]
    assert set(paths[:4]) <= set(strings(read_back))


@pytest.mark.parametrize("path", ["/a\nb", "/a\0b", "/a\x7f", "/a\tb"])
def test_a_path_with_a_control_character_is_refused_and_nothing_runs(path: str) -> None:
    with pytest.raises(ValueError, match="control character"):
        quote(path)


def test_a_command_is_refused_where_its_folder_cannot_be_written_in_a_profile(tmp_path: Path) -> None:
    base = tmp_path / "a\nb"
    base.mkdir()
    create_folders(base)
    sandbox = replace(Cage(base, 2).launcher.sandbox, machine=MAC)
    with pytest.raises(ToolRefused, match="control character"):
        sandbox.restrictions(str(base / "work"), "/bin/bash", "true")


@pytest.fixture
def cage(tmp_path: Path) -> Cage:
    create_folders(tmp_path)
    return Cage(tmp_path, 2)


def profile_for(cage: Cage, *grants: PathGrant, level: int = 2, network: bool = False) -> str:
    sandbox = replace(cage.launcher.sandbox, machine=MAC, choice=SandboxLevel(level, network))
    restrictions = sandbox.restrictions(str(cage.workspace), "/bin/bash", "true", grants=grants)
    assert not any(restriction.startswith(("bwrap=", "abi=", "filter=", "guard=")) for restriction in restrictions)
    return next(
        restriction.removeprefix("profile=") for restriction in restrictions if restriction.startswith("profile=")
    )


def test_a_command_changes_its_folder_and_temporary_files_alone(cage: Cage) -> None:
    profile = read_profile(profile_for(cage))
    work, data = str(cage.workspace), cage.base / "data"
    for path in (f"{work}/new", f"{work}/sub/new", f"{data}/session/tmp/x", "/dev/null"):
        assert allows(profile, "file-write*", path), path
    for path in (
        work,
        f"{cage.outside}/x",
        "/etc/passwd",
        f"{cage.home}/.bashrc",
        f"{cage.state}/x",
        f"{data}/other/x",
    ):
        assert not allows(profile, "file-write*", path), path


def test_secrets_and_the_runtimes_files_cannot_be_read(cage: Cage) -> None:
    profile = read_profile(profile_for(cage))
    assert allows(profile, "file-read*", "/usr/bin/git")
    assert allows(profile, "file-read*", f"{cage.workspace}/x")
    closed = [f"{cage.home}/.ssh/id", f"{cage.home}/notes", f"{cage.state}/db", f"{cage.base}/data/other/x", "/tmp/x"]
    closed += ["/private/tmp/x", "/private/var/folders/x", "/System/Volumes/Data/Users/me/.ssh/id", SEATBELT_MARK]
    for path in closed:
        assert not allows(profile, "file-read*", path), path


@pytest.mark.parametrize("name", ["config", "hooks/pre-commit", "HOOKS/x", "info/x", "Config.Worktree"])
def test_what_git_obeys_stays_as_it_is(cage: Cage, name: str) -> None:
    profile = read_profile(profile_for(cage))
    git = f"{cage.workspace}/.git"
    assert allows(profile, "file-write*", f"{git}/objects/aa/bb") or not os.path.isdir(git)
    assert not allows(profile, "file-write*", f"{git}/{name}")
    assert not allows(profile, "file-write*", git)


@pytest.mark.slow(keep=20)
@pytest.mark.parametrize("name", PROTECTED_NAMES)
def test_a_protected_name_cannot_be_created_however_it_is_written(cage: Cage, name: str) -> None:
    profile = read_profile(profile_for(cage))
    for spelling in (name, name.upper(), name.title(), f"{name}/x"):
        assert not allows(profile, "file-write*", f"{cage.workspace}/{spelling}"), spelling
    assert allows(profile, "file-write*", f"{cage.workspace}/x{name}")
    assert allows(profile, "file-write*", f"{cage.workspace}/sub/{name}")


def test_an_approved_file_is_open_to_its_command_and_its_neighbours_are_not(cage: Cage) -> None:
    home = str(cage.home)
    profile = read_profile(profile_for(cage, PathGrant(path=f"{home}/notes", access="write")))
    assert allows(profile, "file-write*", f"{home}/notes")
    assert not allows(profile, "file-write*", f"{home}/other")
    assert not allows(profile, "file-read*", f"{home}/.ssh/id")
    approved = read_profile(profile_for(cage, PathGrant(path=f"{cage.workspace}/.mcp.json", access="write")))
    assert allows(approved, "file-write*", f"{cage.workspace}/.mcp.json")


def test_what_landlock_denies_is_denied(cage: Cage) -> None:
    sandbox_paths = cage.launcher.sandbox.paths
    assert sandbox_paths is not None
    command_folder = find_command_folder(
        sandbox_paths, str(cage.workspace), find_openings([], sandbox_paths.homes, sandbox_paths.closed)
    )
    restrictions = landlock_restrictions(sandbox_paths, command_folder, 7, network=False)
    write = [restriction.removeprefix("write=") for restriction in restrictions if restriction.startswith("write=")]
    read = [
        restriction.removeprefix("read=") for restriction in restrictions if restriction.startswith("read=")
    ] + write
    profile = read_profile(seatbelt_profile(seatbelt_rules(sandbox_paths, command_folder, network=False)))
    places = [*sandbox_paths.hidden, *sandbox_paths.own, *sandbox_paths.homes, str(cage.outside), "/run", "/var/tmp"]
    for path in (f"{place}/x" for place in places):
        if not any(path.startswith(f"{folder}/") for folder in read):
            assert not allows(profile, "file-read*", path), path
        if not any(path.startswith(f"{folder}/") for folder in write):
            assert not allows(profile, "file-write*", path), path


def test_the_network_is_closed_or_one_port_or_open() -> None:
    def rules(text: str) -> list[str]:
        return re.findall(r"allow (network[^\n]*)", text)

    assert rules(seatbelt_profile(SeatbeltRules())) == []
    assert rules(seatbelt_profile(SeatbeltRules(ports=(3128,)))) == ['network-outbound (remote ip "localhost:3128"))']
    assert len(rules(seatbelt_profile(SeatbeltRules(network=True)))) == 2


def test_every_level_uses_the_profile_and_hosts_have_a_port(cage: Cage) -> None:
    assert [choose(level, MAC, (), attended=True, any_level=False).level for level in (None, 1, 2, 3)] == [2, 1, 2, 3]
    assert profile_for(cage, level=1) == profile_for(cage, level=3)
    sandbox = Sandbox(SandboxLevel(3), MAC, cage.launcher.sandbox.paths, hosts=("example.org",))
    reach = NetworkReach(hosts=("example.org",), socket="127.0.0.1:4567")
    environment = sandbox.environment({"PATH": "/bin"}, reach)
    assert environment["HTTPS_PROXY"] == "http://127.0.0.1:4567"
    assert environment["TMPDIR"] == str(cage.base / "data" / "session" / "tmp")
    restrictions = sandbox.restrictions(str(cage.workspace), "/bin/bash", "true", reach=reach)
    assert any('"localhost:4567"' in restriction for restriction in restrictions)


def test_a_program_of_the_runtime_gets_a_profile_too(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    confinement = Confinement(MAC, (str(secret),))
    command, descriptors = confinement.around(["git", "status"], write=[str(tmp_path / "out")]).start()
    assert (command[:2], command[3:], descriptors) == (["/usr/bin/sandbox-exec", "-p"], ["git", "status"], ())
    profile = read_profile(command[2])
    assert not allows(profile, "file-read*", f"{secret}/x")
    assert allows(profile, "file-read*", "/usr/bin/git")
    assert allows(profile, "file-write*", f"{tmp_path}/out/x")
    assert not allows(profile, "file-write*", f"{tmp_path}/x")


@pytest.mark.parametrize(("script", "works"), [("exec sh -c :", True), ("echo no such rule >&2; exit 65", False)])
def test_the_program_is_tried_once_and_a_failure_names_its_reason(tmp_path: Path, script: str, works: bool) -> None:
    program = tmp_path / "sandbox-exec"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o700)
    machine = examine_seatbelt(str(program))
    assert machine.best == (3 if works else 0)
    assert ("no such rule" in machine.reason(2)) is not works
    assert examine_seatbelt("/nowhere/sandbox-exec").best == 0


@pytest.mark.anyio
async def test_a_proxy_can_have_a_port_instead_of_a_socket() -> None:
    proxies = SessionProxies(ports=True)
    async with anyio.create_task_group() as group:
        await group.start(lambda task_status: proxies.serve(task_status=task_status))
        place = await proxies.open(["example.org"])
        host, _, port = place.rpartition(":")
        async with await anyio.connect_tcp(host, int(port)) as client:
            await client.send(b"CONNECT example.com:443 HTTP/1.1\r\n\r\n")
            assert (await client.receive()).startswith(b"HTTP/1.1 403")
        assert proxies.refused_hosts(place) == ("example.com:443",)
        group.cancel_scope.cancel()


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"

"""A session killed on one machine goes on in a clone on another: a real server, a real git remote, a real socket.

The machines have homes and process namespaces of their own, and no folder in common but the git remote.
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.adapters.git.worktree_world import new_repository, run_git
from tests.postgres_server import PostgresServer
from tests.simulation.foreign_service import Json, Say, Service, foreign_service
from tests.simulation.test_two_machines import LONGEST, Machine, may_unshare, resumed

pytest.importorskip("psycopg", reason="the extra callboard[postgres] is not installed")

BRANCH = "callboard/{}/workspace"


def use(number: int, name: str, **tool_input: object) -> Json:
    return {"type": "tool_use", "id": f"toolu_{number}", "name": name, "input": tool_input}


class Hosts:
    """Two machines, the remote, and the workspace of the first."""

    def __init__(self, base: Path, url: str, service: Service, **settings: str) -> None:
        if not may_unshare():
            pytest.skip("this user may not create namespaces of processes")
        self.service = service
        self.remote = base / "remote.git"
        run_git(base, "init", "-q", "--bare", str(self.remote))
        variables = {
            "CALLBOARD_WORKSPACE_REMOTE": str(self.remote),
            "CALLBOARD_SANDBOX__LEVEL": "0",
            "ANTHROPIC_BASE_URL": service.url,
            "ANTHROPIC_API_KEY": "dummy",
            **settings,
        }
        (base / "a").mkdir()
        self.workspace = new_repository(base / "a" / "app")
        run_git(self.workspace, "remote", "add", "origin", str(self.remote))
        run_git(self.workspace, "push", "-q", "origin", "HEAD:main")
        (base / "b" / "elsewhere").mkdir(parents=True)
        self.first = Machine("first", self.workspace, url, **variables)
        self.second = Machine("second", base / "b" / "elsewhere", url, **variables)

    def until(self, process: subprocess.Popen[str], condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + LONGEST
        while not condition():
            assert process.poll() is None, process.communicate()
            assert time.monotonic() < deadline, self.service.complaints
            time.sleep(0.02)

    def at_remote(self, name: str) -> str:
        """Return a file of the newest checkpoint of the workspace; empty if there is none."""
        branches = run_git(self.remote, "for-each-ref", "--format=%(refname)", "refs/heads/callboard").split()
        shown = ["git", "show", f"{branches[0]}:{name}"] if branches else ["false"]
        return subprocess.run(shown, cwd=self.remote, check=False, capture_output=True, text=True).stdout

    @property
    def clone(self) -> Path:
        found = [path.parent for path in self.second.home.glob(".local/share/callboard/clones/*/*/.git")]
        assert len(found) == 1, found
        return found[0]


def without_paths(body: bytes, hosts: Hosts, machine: Machine, workspace: Path) -> bytes:
    return body.replace(str(workspace).encode(), b"WORKSPACE").replace(str(machine.home).encode(), b"HOME")


RUN = ("run", "--permission-mode", "bypassPermissions", "Change the files.")


@pytest.mark.slow
def test_a_session_goes_on_elsewhere_with_the_same_next_request(
    server: PostgresServer, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    def script(request: Json, number: int) -> Say:
        match number:
            case 0:
                changes = (use(0, "write_file", path="new.txt", content="from the first machine\n"),)
                return Say([*changes, use(1, "bash", command="rm b.txt; echo more >> a.txt; chmod +x a.txt")])
            case 1:
                return Say([], wait_s=LONGEST)
            case 2:
                return Say([use(2, "bash", command="cat a.txt new.txt; ls b.txt; echo second > second.txt")])
            case _:
                return Say([{"type": "text", "text": "Done."}])

    with foreign_service(script) as service:
        hosts = Hosts(tmp_path.resolve(), server.url, service, CALLBOARD_CHECKPOINT="step")
        with hosts.first.started(*RUN) as process:
            hosts.until(process, lambda: len(service.bodies) == 2 and hosts.at_remote("new.txt") != "")
            process.kill()
            process.communicate()
        answer, began = resumed(hosts.second)
    assert answer.strip() == "Done."
    assert service.complaints == []
    clone = hosts.clone
    there, here = (
        without_paths(body, hosts, machine, folder)
        for body, machine, folder in (
            (service.bodies[1], hosts.first, hosts.workspace),
            (service.bodies[2], hosts.second, clone),
        )
    )
    assert here == there
    assert str(clone).encode() in service.bodies[2], "the prompt names the folder of this host"
    assert "from the first machine" in str(service.requests[3]["messages"][-1])
    assert "second.txt" in run_git(clone, "status", "--porcelain")
    assert hosts.at_remote("second.txt") == "second\n"
    assert not (hosts.workspace / "second.txt").exists()
    record_property("seconds from the start of the process to the request", round(service.times[2] - began, 2))


@pytest.mark.slow
def test_losses_are_named_in_the_words_of_a_crash(server: PostgresServer, tmp_path: Path) -> None:
    base = tmp_path.resolve()
    saved = threading.Event()

    def script(request: Json, number: int) -> Say:
        match number:
            case 0:
                saved.wait(LONGEST)
                return Say([use(0, "bash", command="sleep 600", run_in_background=True)])
            case 1:
                lost = use(1, "write_file", path=str(hosts.workspace / "lost.txt"), content="x")
                outside = use(2, "write_file", path=str(base / "outside.txt"), content="x")
                return Say([lost, outside, use(3, "bash", command="echo 1 > made.txt")])
            case 2:
                return Say([use(4, "bash", command="touch begun; sleep 600")])
            case _:
                return Say([{"type": "text", "text": "Done."}])

    probe = Path(__file__).parents[1] / "adapters" / "mcp" / "mcp_raw_server.py"
    servers = {"mcpServers": {"probe": {"command": sys.executable, "args": [str(probe)]}}}
    with foreign_service(script) as service:
        hosts = Hosts(base, server.url, service)
        (hosts.workspace / "noise.log").write_text("ignored")
        with hosts.first.started(*RUN, "--mcp-config", json.dumps(servers)) as process:
            hosts.until(process, lambda: hosts.at_remote("a.txt") != "")
            saved.set()
            hosts.until(process, (hosts.workspace / "begun").exists)
            process.kill()
            process.communicate()
        answer, _ = resumed(hosts.second)
    assert answer.strip() == "Done."
    assert service.complaints == []
    told = json.dumps(service.requests[3]["messages"], ensure_ascii=False)
    for words in (
        "The runtime stopped on another host, and this session continues here from its last checkpoint.",
        f"Your workspace is {hosts.clone} now. It was {hosts.workspace}:",
        "- Changes after the last checkpoint, which are not here: lost.txt\\n",
        "they did is unknown: echo 1 > made.txt\\n",
        "- Files that git ignores, which are not here: noise.log\\n",
        f"- Files outside the workspace that you changed, which are not here: {base}/outside.txt\\n",
        "- MCP servers that were processes of that host, and begin anew here: probe\\n",
        "The runtime stopped while this command was under way, so its outcome is unknown and it was not run again.",
    ):
        assert words in told, words
    # The end of a command in the background is mail: it may come with the next request.
    told = json.dumps(service.requests[-1]["messages"], ensure_ascii=False)
    assert "lost, its end is unknown: its process is gone and left no exit code" in told
    assert not (hosts.clone / "lost.txt").exists()


@pytest.mark.slow
def test_a_take_over_from_another_machine_gets_the_last_checkpoint(server: PostgresServer, tmp_path: Path) -> None:
    def script(request: Json, number: int) -> Say:
        match number:
            case 0:
                return Say([use(0, "bash", command="echo 1 > late.txt")])
            case 1:
                return Say([], wait_s=LONGEST)
            case _:
                return Say([{"type": "text", "text": "Done."}])

    with foreign_service(script) as service:
        hosts = Hosts(tmp_path.resolve(), server.url, service)
        with hosts.first.started(*RUN) as process:
            hosts.until(process, lambda: len(service.bodies) == 2)
            code, out, err = hosts.second.run("resume", "--take-over")
            process.communicate(timeout=LONGEST)
    assert (code, out.strip()) == (0, "Done."), err
    assert process.returncode == 3
    assert (hosts.clone / "late.txt").read_text() == "1\n"
    assert "The runtime stopped on another host" not in json.dumps(service.requests[2]["messages"])


@pytest.mark.slow
def test_a_serving_host_without_the_workspace_runs_a_detached_session(server: PostgresServer, tmp_path: Path) -> None:
    def script(request: Json, number: int) -> Say:
        if number == 0:
            return Say([use(0, "bash", command="cat a.txt; echo 1 > made.txt")])
        return Say([{"type": "text", "text": "Done."}])

    with foreign_service(script) as service:
        hosts = Hosts(tmp_path.resolve(), server.url, service)
        (hosts.workspace / "a.txt").write_text("not committed")
        code, session, err = hosts.first.run(*RUN[:-1], "--detach", RUN[-1])
        assert code == 0, err
        with hosts.second.started("serve") as serving:
            hosts.until(serving, lambda: len(service.bodies) == 2 and hosts.at_remote("made.txt") != "")
    assert service.complaints == []
    assert "not committed" in json.dumps(service.requests[1]["messages"])
    assert (hosts.clone / "made.txt").exists()
    assert session.strip() in str(hosts.clone)

"""A command at sandbox level 0 cannot act as the person, whatever namespaces and filters it starts in."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path

import anyio
import pytest
from tests.cli.commands.command import Command
from tests.cli.commands.pending_requests import create_session_with, stored_request
from tests.cli.views.plan_rows import plan

from callboard.adapters.processes import tool_ancestry
from callboard.adapters.processes.launcher import ShellLauncher

NO_PROC = "sh -c 'mount -t tmpfs none /proc && exec \"$@\"' sh"
NAMESPACES = {
    "a process namespace": "unshare -p -f --mount-proc",
    "a process namespace beside the old /proc": "unshare -p -f",
    "a user and a process namespace": "unshare -U -r -p -f --mount-proc",
    "no /proc": f"unshare -m {NO_PROC}",
    "a user namespace and no /proc": f"unshare -U -r -m {NO_PROC}",
    "bubblewrap with its own /proc": "bwrap --bind / / --unshare-pid --proc /proc",
    "bubblewrap without /proc": "bwrap --bind / / --tmpfs /proc",
    "a session of its own": "setsid --wait",
}
WITH_ALL_WAYS = ("a process namespace", "bubblewrap with its own /proc")
"""Setups tested with every way to answer. The ways share one function, and the imports of each take long."""


unmarked = pytest.mark.skipif(bool(tool_ancestry.started_by_tool()), reason="these tests run in a tool's process")


@pytest.fixture
def command(tmp_path: Path) -> Command:
    made = Command(tmp_path)
    create_session_with(made, plan(), plan(id="req_a2"))
    return made


def answer_program(command: Command, *ways: str) -> list[str]:
    """Return the program that answers the requests in these ways in turn, and prints the output of each.

    It imports the package once, which is most of the time of one way.
    """
    model = command.scenario("agents:\n  lead:\n    - reply: Done.\n")
    return [sys.executable, str(Path(__file__).with_name("answer_child.py")), model, *ways]


def run_as_tool(command: Command, words: str) -> tuple[int, str]:
    """Run a shell command as the `bash` tool does at level 0, and return its exit code and output."""
    launcher = ShellLauncher(command.workspace, command.env)
    keep = command.workspace.parent / "results" / "call.out"

    async def run() -> tuple[int, str]:
        finished = await launcher.run(words, command.workspace, timeout=300.0, keep=keep)
        return finished.exit_code, finished.output

    return anyio.run(run)


@pytest.mark.slow
@pytest.mark.parametrize("namespace", NAMESPACES)
def test_a_command_in_new_namespaces_is_still_a_tools(command: Command, namespace: str) -> None:
    ways = ("command line", "message", "Python API") if namespace in WITH_ALL_WAYS else ("command line",)
    wrapper = NAMESPACES[namespace]
    code, output = run_as_tool(command, f"{wrapper} true")
    if code:
        pytest.skip(f"`{wrapper}` does not work here: {output.strip()}")
    environment = shlex.join(f"{name}={value}" for name, value in command.env.items())
    program = shlex.join(answer_program(command, *ways))
    code, output = run_as_tool(command, f"env -i {environment} {wrapper} {program}")
    assert code == 0, output
    written = json.loads(output)
    assert set(written) == set(ways)
    mark = "it has the mark that every process of a tool inherits"
    assert {way: text for way, text in written.items() if mark not in text} == {}
    assert [stored_request(command, request).status for request in ("req_a1", "req_a2")] == ["pending"] * 2


@pytest.mark.slow
@unmarked
@pytest.mark.parametrize(
    ("wrapper", "bit"),
    [("", True), ("unshare -U -r -p -f --mount-proc", False), ("unshare -U -r -p -f --mount-proc", True)],
    ids=["no_new_privs", "a container", "a container with no_new_privs"],
)
def test_a_person_answers_in_a_container_and_without_new_privileges(command: Command, wrapper: str, bit: bool) -> None:
    words = [*(["setpriv", "--no-new-privs"] if bit else []), *shlex.split(wrapper)]
    if words and subprocess.run([*words, "true"], check=False, capture_output=True).returncode:
        pytest.skip(f"`{shlex.join(words)}` does not work here")
    ran = subprocess.run(
        [*words, *answer_program(command, "command line", "Python API")],
        cwd=command.workspace,
        env=command.env,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    written = json.loads(ran.stdout)
    assert "req_a1 approved" in written["command line"], written
    assert "req_a2 approved" in written["Python API"], written
    assert [stored_request(command, request).status for request in ("req_a1", "req_a2")] == ["approved"] * 2


# Kernels without filters


def test_without_filters_the_bit_counts_where_the_ancestors_are_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    def bit(pid: int) -> str:
        return "1" if pid else ""

    def yes() -> bool:
        return True

    def no() -> bool:
        return False

    monkeypatch.setattr(tool_ancestry, "_can_be_marked", no)
    monkeypatch.setattr(tool_ancestry, "_no_new_privs", bit)
    monkeypatch.setattr(tool_ancestry, "_shows_all_ancestors", yes)
    assert tool_ancestry.started_by_tool() == "", "the whole machine has the bit"
    monkeypatch.setattr(tool_ancestry, "_shows_all_ancestors", no)
    assert "use a terminal outside of them" in tool_ancestry.started_by_tool()
    assert tool_ancestry.started_by_tool(service=True) == ""


def test_a_mark_that_cannot_be_read_is_refused_with_a_hint(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(value: int, flags: int) -> int:
        raise OSError(24, os.strerror(24))

    monkeypatch.setattr(os, "eventfd", fails)
    assert "allow that call, or close some files" in tool_ancestry.started_by_tool()


@pytest.mark.parametrize("error", [0, 22, 24])
def test_a_further_filter_does_not_hide_the_mark(error: int) -> None:
    hiding = """if True:
        import sys
        from callboard.adapters.processes import tool_ancestry, tool_mark
        from callboard.adapters.processes.sandbox import bpf, isolation
        tool_mark.mark_process()
        refuse = bpf.when(bpf.EQUAL, tool_ancestry.MARK_VALUE, bpf.ERRNO | int(sys.argv[1]))
        program = [(bpf.LOAD, 0, 0, bpf.ARGUMENTS), *refuse, (bpf.RETURN, 0, 0, bpf.ALLOW)]
        isolation.apply_call_filter(bpf.pack_program(program))
        sys.exit(0 if tool_ancestry.started_by_tool() else 1)
    """
    value = tool_ancestry.MARK_VALUE.to_bytes(8, sys.byteorder)
    environment = {name: text for name, text in os.environ.items() if name != tool_ancestry.TOOL_MARK}
    program = [sys.executable, "-c", hiding, str(error)]
    ran = subprocess.run(program, input=value, env=environment, check=False, capture_output=True)
    assert ran.returncode == 0, ran.stderr

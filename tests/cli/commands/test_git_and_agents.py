"""In whole runs, the runtime's own git runs nothing that a sandboxed agent planted while it worked."""

from __future__ import annotations

import json
import os
import select
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from tests.adapters.git.worktree_world import new_repository, run_git
from tests.adapters.processes.cage import require_level
from tests.cli.commands.command import Command

NESTED = """#!/bin/sh
# A repository in the repository: who asks for the changes of the outer one runs the filter of the inner one.
git init -q sub && cd sub && echo one > f && git add f && git commit -qm inner && cd .. && git add sub &&
git commit -qm outer && git -C sub config filter.e.clean "$PWD/canary" && echo '* filter=e' > sub/.gitattributes &&
echo two > sub/f && echo planted
"""
SHARED = """#!/bin/sh
# Another common folder, whose configuration names a program, put back as often as it is taken away.
cp -r .git evil && git config -f evil/config core.fsmonitor "$PWD/canary"
echo ../evil > .git/commondir; touch armed
until [ -e done ]; do echo ../evil > .git/commondir; sleep 0.05; done
"""
"""Scripts that an agent runs in the sandbox; each sets the trap last, so that it does not trigger the trap itself."""


@dataclass
class Canary:
    """Program that reports each run through a pipe, which works even across read-only mounts."""

    command: Command
    pipe: int

    @property
    def has_run(self) -> bool:
        return bool(select.select([self.pipe], [], [], 0)[0] and os.read(self.pipe, 10_000))

    def git(self, *words: str, folder: Path | None = None) -> None:
        """Run a plain git, as a person without Callboard would."""
        environment = {**self.command.env, "GIT_CONFIG_NOSYSTEM": "1"}
        subprocess.run(
            ["git", *words], cwd=folder or self.command.workspace, env=environment, capture_output=True, check=False
        )


@pytest.fixture
def canary(tmp_path: Path) -> Iterator[Canary]:
    require_level(2)
    if shutil.which("bwrap") is None:
        pytest.skip("bubblewrap is not on the PATH of these tests")
    command = Command(tmp_path)
    command.workspace.rmdir()
    new_repository(command.workspace)
    for name, text in (
        ("nested.sh", NESTED),
        ("shared.sh", SHARED),
        ("canary", "#!/bin/sh\necho sang > EAR\nexit 1\n"),
    ):
        file = command.workspace / name
        file.write_text(text.replace("EAR", str(command.workspace / "ear")))
        file.chmod(0o755)
    (tmp_path / ".gitconfig").write_text("[user]\n\tname = p\n\temail = p@example.org\n")
    run_git(command.workspace, "add", ".")
    run_git(command.workspace, "commit", "-qm", "traps")
    os.mkfifo(command.workspace / "ear")
    ear = os.open(command.workspace / "ear", os.O_RDWR | os.O_NONBLOCK)
    try:
        yield Canary(command, ear)
    finally:
        os.close(ear)


LEAD = """
agents:
  lead:
    - reply: [{tool_use: {name: bash, input: {command: sh nested.sh}}}]
    - when: {contains: planted}
      reply: [{tool_use: {name: bash, input: {command: sh shared.sh, run_in_background: true}}}]
    - when: {contains: Background task}
      reply: [{tool_use: {name: bash, input: {command: 'until [ -e armed ]; do sleep 0.01; done'}}}]
    - when: {result_of: bash}
      reply: [{tool_use: {name: spawn_teammate, input: {name: alice, role: writer, prompt: Look.}}}]
    - when: {result_of: spawn_teammate}
      reply: waiting
    - when: {contains: 'Git: branch main, at [^$]*\\barmed\\b'}
      reply: [{tool_use: {name: bash, input: {command: touch done}}}]
    - otherwise: true
      reply: all done
  # Her facts are left out if they are asked for while the trap is there: `test_git_traps.py` covers that alone.
  alice:
    - reply: [{tool_use: {name: report, input: {status: done, result: looked}}}]
"""


@pytest.mark.slow
def test_an_agent_that_keeps_changing_the_repository_makes_the_facts_of_a_turn_run_nothing(canary: Canary) -> None:
    command = canary.command
    ran = command.run_inline("run", "--permission-mode", "sandboxed", "--model", command.scenario(LEAD), "Go.")
    assert (ran.code, ran.out) == (0, "all done\n"), ran.err
    assert not canary.has_run
    canary.git("status")
    assert canary.has_run, "the trap is real: a plain git runs it"
    (command.workspace / ".git" / "commondir").write_text("../evil\n")
    canary.git("status", "--ignore-submodules=all")
    assert canary.has_run, "the other one is real too"


@pytest.mark.slow
def test_a_repository_planted_in_a_worktree_makes_the_commands_of_a_person_run_nothing(canary: Canary) -> None:
    command = canary.command
    scenario = command.scenario(
        """
agents:
  lead:
    - reply: [{tool_use: {name: spawn_teammate, input: {name: bob, role: writer, prompt: Plant., worktree: roof}}}]
    - reply: waiting
    - reply: all done
  bob:
    - reply: [{tool_use: {name: bash, input: {command: sh nested.sh}}}]
    - when: {contains: planted}
      reply: [{tool_use: {name: report, input: {status: done, result: done}}}]
"""
    )
    ran = command.run_inline("run", "--permission-mode", "sandboxed", "--model", scenario, "Go.")
    assert (ran.code, ran.out) == (0, "all done\n"), ran.err
    (line,) = json.loads(command.run_inline("worktrees", "--json").out)
    assert (line["name"], line["ahead"]) == ("roof", 1)
    for act in (("merge", "roof"), ("remove", "roof")):
        assert "Traceback" not in command.run_inline("worktrees", *act).err
    assert not canary.has_run
    canary.git("status", folder=Path(line["folder"]))
    assert canary.has_run, "the trap is real: a plain git runs it"

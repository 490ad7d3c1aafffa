"""The command as a process, in its own workspace and home, with scenarios in place of a model service."""

from __future__ import annotations

import contextlib
import io
import json
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

from tests.adapters.git.worktree_world import new_repository
from tests.warm import NOTHING, PIPE, Process

from callboard.__main__ import main


@dataclass
class CommandResult:
    """Exit code and output of a command."""

    code: int
    out: str
    err: str

    @property
    def messages(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.out.splitlines()]


class Command:
    """`callboard` in one workspace."""

    def __init__(self, folder: Path) -> None:
        self.workspace = folder / "workspace"
        self.workspace.mkdir()
        locale = {name: os.environ[name] for name in ("PATH", "LANG", "LC_ALL") if name in os.environ}
        homes = {f"XDG_{kind}_HOME": str(folder / kind.lower()) for kind in ("STATE", "DATA", "CONFIG")}
        self.env = {**locale, **homes, "HOME": str(folder), "TERM": "xterm", "PYTHONWARNINGS": "error"}
        self.argv = [sys.executable, "-m", "callboard"]

    def scenario(self, text: str) -> str:
        """Write a scenario, and return its name for `--model`."""
        file = self.workspace.parent / "scenario.yaml"
        file.write_text(text)
        return f"rehearsal:{file}"

    def run(self, *args: str, stdin: str | None = None, timeout: float = 60, **env: str) -> CommandResult:
        """Run to the end."""
        done = self.start(*args, stdin=NOTHING if stdin is None else PIPE, **env)
        try:
            out, err = done.communicate(stdin, timeout)
        finally:
            done.kill()
        return CommandResult(done.wait(), out, err)

    def answers(self, *args: str, lines: Sequence[bytes]) -> list[dict[str, Any]]:
        """Return one process's answers with `--stdin` to these lines: an object per line, and nothing more."""
        folder = self.workspace.parent
        given, got = folder / "given", folder / "got"
        given.write_bytes(b"".join(line + b"\n" for line in lines))
        with given.open("rb") as stdin, got.open("wb") as stdout:
            done = self.start(*args, "--stdin", stdin=stdin.fileno(), stdout=stdout.fileno())
            _, told = done.communicate(timeout=300)
        assert (done.returncode, told) == (0, "")
        answers = [json.loads(line) for line in got.read_bytes().splitlines()]
        assert len(answers) == len(lines)
        return answers

    def run_inline(self, *args: str, **env: str) -> CommandResult:
        """Run in this process, which has already imported the package; stdin is empty."""
        out, err, before = io.StringIO(), io.StringIO(), Path.cwd()
        with mock.patch.dict(os.environ, {**self.env, **env}, clear=True):
            os.chdir(self.workspace)
            try:
                with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
                    code = main(args)
            finally:
                os.chdir(before)
        return CommandResult(code, out.getvalue(), err.getvalue())

    def start(self, *args: str, stdin: int = NOTHING, stdout: int = PIPE, **env: str) -> Process:
        """Start the command and leave it running."""
        return Process([*self.argv[1:], *args], self.workspace, {**self.env, **env}, stdin=stdin, stdout=stdout)


def command_in_repository(folder: Path) -> Command:
    """Return the command with a new git repository as its workspace."""
    command = Command(folder)
    command.workspace.rmdir()
    new_repository(command.workspace)
    return command

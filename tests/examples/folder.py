"""The folder for the blocks of one page: a small repository, a home, a model, and `callboard` on the PATH."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
from dataclasses import dataclass, field
from pathlib import Path

import yaml
from tests.examples.pages import ROOT, Block
from tests.examples.programs import Server, SpecialCommand
from tests.warm import PIPE, Process

EXAMPLES = Path(__file__).parent
FILES = {
    "hello.txt": "Hello, world.\n",
    "src/app.py": "def add(a: int, b: int) -> int:\n    return a + b\n",
    "tests/test_app.py": "import app\n\n\ndef test_add() -> None:\n    assert app.add(1, 2) == 3\n",
}
MODEL = {"agents": {"*": [{"otherwise": True, "reply": "Done."}]}}
SECONDS = 300
STAND_INS = {
    "make": "runs the targets that CI runs; here only their existence is checked",
    "sudo": "installs system packages, as root",
    "systemctl": "controls the machine's systemd, for `callboard service`",
    "uvx": "downloads from a package index; the installed server of that name is started instead",
    "npx": "downloads from a package registry; an installed server is started instead",
}
"""Programs that no example starts, with the reason: a stand-in takes their place."""


@dataclass
class PageConfig:
    """Content of `PAGE.yaml`."""

    model: object = field(default_factory=lambda: MODEL)
    before: str = ""
    commands: dict[str, SpecialCommand] = field(default_factory=dict[str, SpecialCommand])
    ids: dict[str, str] = field(default_factory=dict[str, str])
    """Command that prints this run's id, by the id on the page."""

    @classmethod
    def of(cls, page: str) -> PageConfig:
        file = EXAMPLES / f"{page}.yaml"
        if not file.exists():
            return cls()
        content = yaml.safe_load(file.read_text("utf-8"))
        assert set(content) <= {"model", "before", "commands", "ids"}, f"{file.name}: {sorted(content)}"
        commands: dict[str, SpecialCommand] = {
            words: SpecialCommand(**what) for words, what in content.get("commands", {}).items()
        }
        return cls(content.get("model", MODEL), content.get("before", ""), commands, content.get("ids", {}))


class Folder:
    """The files and processes of one page, as a context manager."""

    def __init__(self, page: str, root: Path) -> None:
        self.page, self.root, self.config = page, root, PageConfig.of(page)
        self.home, self.programs = root / "home", root / "programs"
        self.workspace = self.home / "project"
        self._short = Path(tempfile.mkdtemp(prefix="ex"))  # a socket path is limited to about a hundred characters
        self._now = self.workspace
        """Folder in which the last command ended, as in a reader's terminal."""
        self._python: Process | None = None
        for folder in (self.home, self.programs, self.workspace, root / "tmp"):
            folder.mkdir()
        (root / "model.yaml").write_text(yaml.safe_dump(self.config.model), "utf-8")
        locale = {name: os.environ[name] for name in ("LANG", "LC_ALL") if name in os.environ}
        identity = {f"GIT_{role}_{part}": "ada" for role in ("AUTHOR", "COMMITTER") for part in ("NAME", "EMAIL")}
        homes = {f"XDG_{kind}_HOME": str(root / kind.lower()) for kind in ("STATE", "DATA", "CACHE")}
        self.env = {
            **locale,
            **identity,
            **homes,
            "XDG_CONFIG_HOME": str(self.home / ".config"),
            "HOME": str(self.home),
            "TERM": "xterm",
            "TZ": "UTC",
            "TMPDIR": str(root / "tmp"),
            "COLUMNS": "120",
            "MODEL_ID": f"rehearsal:{root / 'model.yaml'}",
            "CALLBOARD_EXAMPLES": str(self._short / "s"),
            "CALLBOARD_ROOT": str(ROOT),
            "PATH": f"{self.programs}{os.pathsep}{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        }
        self.server = Server(self._short / "s", self.config.commands)

    def __enter__(self) -> Folder:
        self._program("callboard", f'exec "{sys.executable}" -SE "{EXAMPLES / "client.py"}" "$@"')
        for name in STAND_INS:
            self._program(name, "exit 0")
        # Servers of the Python registry are the installed programs; a small stand-in replaces those of npm.
        self._program("uvx", f'module="$(echo "$1" | tr - _)"; shift; exec "{sys.executable}" -m "$module" "$@"')
        self._program("npx", f'exec "{sys.executable}" -m mcp_server_time')
        self._program("make", 'for t; do /usr/bin/make -s -n -C "$CALLBOARD_ROOT" "$t" >/dev/null || exit 1; done')
        for name, text in FILES.items():
            self.write(name, text)
        self.server.start()
        git = "git init -q -b main && git add . && git commit -q -m 'The beginning'"
        subprocess.run(["bash", "-ec", git], cwd=self.workspace, env=self.env, check=True)
        if self.config.before:
            self.shell(self.config.before, f"{self.page}.yaml: before")
        return self

    def __exit__(self, *_: object) -> None:
        if self._python is not None:
            output = self._python.communicate(timeout=SECONDS)
            assert self._python.returncode == 0, output
            assert output == ("", "")
        self.server.stop()
        shutil.rmtree(self._short)

    def _program(self, name: str, text: str) -> None:
        file = self.programs / name
        file.write_text(f"#!/bin/sh\n{text}\n")
        file.chmod(0o755)

    def place(self, path: str) -> Path:
        """Return the path of a block's file."""
        return self.home / path[2:] if path.startswith("~/") else self.workspace / path

    def write(self, path: str, text: str) -> Path:
        """Write a file to its place."""
        file = self.place(path)
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, "utf-8")
        return file

    def with_ids(self, text: str) -> str:
        """Return the text with this run's ids in place of those on the page."""
        for name, command in self.config.ids.items():
            if name in text:
                text = text.replace(name, self.shell(command, f"{self.page}.yaml: ids").strip())
        return text

    def shell(self, script: str, where: str) -> str:
        """Run a script in bash, unchanged, and return its output and errors. Each command must succeed."""
        last = self.root / "folder"
        done = subprocess.run(
            ["bash", "-e", "-o", "pipefail", "-c", f"trap 'pwd > \"{last}\"' EXIT\n{script}"],
            cwd=self._now,
            env=self.env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            timeout=SECONDS,
            check=False,
        )
        assert done.returncode == 0, f"{where}: exit code {done.returncode}\n{done.stdout}"
        self._now = Path(last.read_text().strip())
        return done.stdout

    def python(self, block: Block) -> str:
        """Execute a block in the page's process, and return its output."""
        if self._python is None:
            child = str(EXAMPLES / "python_child.py")
            self._python = Process([child], self.workspace, self.env, stdin=PIPE)
        process = self._python
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(json.dumps({"where": str(block), "text": block.text}) + "\n")
        process.stdin.flush()
        late = threading.Timer(SECONDS, process.kill)
        late.start()
        answer = json.loads(process.stdout.readline() or '{"failed": "the process is gone, or was too slow"}')
        late.cancel()
        assert not answer["failed"], answer["failed"]
        return str(answer["said"])

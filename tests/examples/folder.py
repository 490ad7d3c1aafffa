"""The folder in which the blocks of one page run: a small repository, a home, a model, and `callboard` on the PATH."""

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
from tests.examples.programs import Server, Special
from tests.warm import PIPE, Process

HERE = Path(__file__).parent
FILES = {
    "hello.txt": "Hello, world.\n",
    "src/app.py": "def add(a: int, b: int) -> int:\n    return a + b\n",
    "tests/test_app.py": "import app\n\n\ndef test_add() -> None:\n    assert app.add(1, 2) == 3\n",
}
MODEL = {"agents": {"*": [{"otherwise": True, "reply": "Done."}]}}
SECONDS = 300
ELSEWHERE = {
    "make": "the targets of our Makefile are what CI runs; here: that they exist",
    "sudo": "installs packages of the system, as root",
    "systemctl": "would talk to the systemd of the machine, for `callboard service`",
    "uvx": "would fetch from a package index; the server of that name is installed, and is started",
    "npx": "would fetch from a package registry; a server that is installed is started in its place",
}
"""Programs that no example starts, and why: a stand-in takes their place."""


@dataclass
class Needs:
    """What `PAGE.yaml` says."""

    model: object = field(default_factory=lambda: MODEL)
    before: str = ""
    commands: dict[str, Special] = field(default_factory=dict[str, Special])
    ids: dict[str, str] = field(default_factory=dict[str, str])
    """What the page calls something that the runtime names -> a command that prints what this run calls it."""

    @classmethod
    def of(cls, page: str) -> Needs:
        file = HERE / f"{page}.yaml"
        if not file.exists():
            return cls()
        given = yaml.safe_load(file.read_text("utf-8"))
        assert set(given) <= {"model", "before", "commands", "ids"}, f"{file.name}: {sorted(given)}"
        commands: dict[str, Special] = {words: Special(**what) for words, what in given.get("commands", {}).items()}
        return cls(given.get("model", MODEL), given.get("before", ""), commands, given.get("ids", {}))


class Folder:
    """One page's world. Use it as a context."""

    def __init__(self, page: str, root: Path) -> None:
        self.page, self.root, self.needs = page, root, Needs.of(page)
        self.home, self.programs = root / "home", root / "programs"
        self.workspace = self.home / "project"
        self._short = Path(tempfile.mkdtemp(prefix="ex"))  # the path of a socket may have a hundred characters
        self._now = self.workspace
        """Where the last command went, as in the terminal of a reader."""
        self._python: Process | None = None
        for folder in (self.home, self.programs, self.workspace, root / "tmp"):
            folder.mkdir()
        (root / "model.yaml").write_text(yaml.safe_dump(self.needs.model), "utf-8")
        kept = {name: os.environ[name] for name in ("LANG", "LC_ALL") if name in os.environ}
        who = {f"GIT_{role}_{part}": "ada" for role in ("AUTHOR", "COMMITTER") for part in ("NAME", "EMAIL")}
        homes = {f"XDG_{kind}_HOME": str(root / kind.lower()) for kind in ("STATE", "DATA", "CACHE")}
        self.env = {
            **kept,
            **who,
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
        self.server = Server(self._short / "s", self.needs.commands)

    def __enter__(self) -> Folder:
        self._program("callboard", f'exec "{sys.executable}" -SE "{HERE / "client.py"}" "$@"')
        for name in ELSEWHERE:
            self._program(name, "exit 0")
        # The servers of the registries are the same programs, installed; for those of npm a small one stands in.
        self._program("uvx", f'module="$(echo "$1" | tr - _)"; shift; exec "{sys.executable}" -m "$module" "$@"')
        self._program("npx", f'exec "{sys.executable}" -m mcp_server_time')
        self._program("make", 'for t; do /usr/bin/make -s -n -C "$CALLBOARD_ROOT" "$t" >/dev/null || exit 1; done')
        for name, text in FILES.items():
            self.write(name, text)
        self.server.start()
        git = "git init -q -b main && git add . && git commit -q -m 'The beginning'"
        subprocess.run(["bash", "-ec", git], cwd=self.workspace, env=self.env, check=True)
        if self.needs.before:
            self.shell(self.needs.before, f"{self.page}.yaml: before")
        return self

    def __exit__(self, *_: object) -> None:
        if self._python is not None:
            said = self._python.communicate(timeout=SECONDS)
            assert self._python.returncode == 0, said
            assert said == ("", "")
        self.server.stop()
        shutil.rmtree(self._short)

    def _program(self, name: str, text: str) -> None:
        file = self.programs / name
        file.write_text(f"#!/bin/sh\n{text}\n")
        file.chmod(0o755)

    def place(self, path: str) -> Path:
        """The file of a block's path."""
        return self.home / path[2:] if path.startswith("~/") else self.workspace / path

    def write(self, path: str, text: str) -> Path:
        """Put a file into its place."""
        file = self.place(path)
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, "utf-8")
        return file

    def named(self, text: str) -> str:
        """The text with what this run calls the things that the page names."""
        for name, command in self.needs.ids.items():
            if name in text:
                text = text.replace(name, self.shell(command, f"{self.page}.yaml: ids").strip())
        return text

    def shell(self, script: str, where: str) -> str:
        """Run a script as it stands, in bash: what it prints, errors too. Each command must succeed."""
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
        """Execute a block in the page's process: what it prints."""
        if self._python is None:
            child = str(HERE / "python_child.py")
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

"""A jail in which bash really runs commands: every program is a stub that notes its name, and nothing else is there.

bubblewrap unshares everything; the root is empty but for libraries, a shell, the stubs and a workspace that cannot be
written. `sh`, `bash` and the wrappers that start others are noted, and then really start them. A stub writes to a
descriptor that it inherits, so that each start counts for the command it came from, however late it is.
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterable, Sequence
from pathlib import Path

BWRAP = shutil.which("bwrap")
STARTERS = ("env", "nice", "nohup", "timeout", "stdbuf", "setsid")
FOLDERS = ("/usr/bin", "/bin", "/usr/sbin", "/sbin", "/usr/local/bin")
SECONDS = 120
STUB = '#!/jail/bash\nprintf "%s\\n" "${0##*/}" >&9\n'
FILES = ("README.md", "src/a.py", ".env", "a.tar", "package.json")
RUNNABLE = ("x.sh", "x", "evil.sh", "run.sh", "src/run")
DRIVER = """\
for s in /scripts/*; do
  cd /work; HOME=/home/me /jail/timeout 5 /jail/bash -c "$(< "$s")" < /dev/null > /dev/null 2>&1 9>> "/out/${s##*/}"
done
"""


class Jail:
    """One folder of stubs; each `run` is a jail of its own."""

    def __init__(self, folder: Path, words: Iterable[str]) -> None:
        self._folder = folder
        for name in ("stubs", "jail", "work", "out", "scripts"):
            (folder / name).mkdir()
        self._stub(folder / "jail/stub", "")
        for tool in ("bash", "dash", *STARTERS):
            found = shutil.which(tool) or shutil.which("bash")
            assert found is not None
            shutil.copy(found, folder / "jail" / tool)
        for word in {*words, "sh", "bash", "dash", *STARTERS}:
            self._program(word)
        self._workspace()

    def _program(self, word: str) -> None:
        real = {"sh": "dash", "dash": "dash", "bash": "bash"}.get(word, word if word in STARTERS else "")
        path = self._folder / "stubs" / word
        if real:
            self._stub(path, f'exec /jail/{real} "$@"\n')
        else:
            path.symlink_to("/jail/stub")

    def _stub(self, path: Path, more: str) -> None:
        path.write_text(STUB + more)
        path.chmod(0o755)

    def _workspace(self) -> None:
        work = self._folder / "work"
        (work / "src").mkdir()
        for name in FILES:
            (work / name).write_text("evil.sh; ./x.sh\n")  # whoever runs what a file says is found out
        for name in RUNNABLE:
            (work / name).symlink_to("/jail/stub")

    def started(self, commands: Sequence[str]) -> list[set[str]]:
        """Run the commands one after the other; return the names of the programs that each of them started."""
        scripts = self._folder / "scripts"
        for at, command in enumerate(commands):
            (scripts / f"{at:06}").write_text(command)
        done = subprocess.run(self._command(), capture_output=True, text=True, timeout=SECONDS, check=False)
        assert done.returncode == 0, done.stderr
        logs = [self._folder / f"out/{at:06}" for at in range(len(commands))]
        started = [set(log.read_text(errors="replace").split("\n")) - {""} for log in logs]
        for at, log in enumerate(logs):
            log.unlink()
            (scripts / f"{at:06}").unlink()
        return started

    def _command(self) -> list[str]:
        libraries = [path for path in ("/lib", "/lib64", "/usr/lib", "/usr/lib64") if Path(path).exists()]
        stubs = [word for folder in FOLDERS for word in ("--ro-bind", str(self._folder / "stubs"), folder)]
        return [
            *(str(BWRAP), "--unshare-all", "--die-with-parent", "--new-session", "--clearenv", "--cap-drop", "ALL"),
            *(word for path in libraries for word in ("--ro-bind", path, path)),
            *stubs,
            *("--ro-bind", str(self._folder / "jail"), "/jail", "--ro-bind", str(self._folder / "scripts"), "/scripts"),
            *("--bind", str(self._folder / "out"), "/out", "--dir", "/home/me", "--dir", "/tmp", "--dev", "/dev"),
            *("--ro-bind", str(self._folder / "work"), "/work", "--setenv", "PATH", "/usr/bin"),
            *("/jail/bash", "-c", f"ulimit -u 200 -v 2000000; {DRIVER}\nexit 0"),
        ]


def jail_works() -> bool:
    """Whether bubblewrap is here and may make a jail."""
    if BWRAP is None or shutil.which("bash") is None:
        return False
    words = [BWRAP, "--unshare-all", "--ro-bind", "/", "/", "--cap-drop", "ALL", "/bin/true"]
    return subprocess.run(words, capture_output=True, check=False).returncode == 0

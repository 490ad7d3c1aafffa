"""Detection of failures that the sandbox probably caused, with the remedy.

Derived from the command's output, so it may be wrong both ways: the text says what the sandbox does, not what happened.
"""
# ruff: noqa: PTH110
# Paths are text here, as a command writes them.

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence

from callboard.adapters.processes.programs import is_within
from callboard.adapters.processes.sandbox.ground import CROWDED, SandboxPaths
from callboard.adapters.processes.sandbox.sandbox import Reach

_NO_NETWORK = re.compile(
    r"could not resolve|couldn't resolve|temporary failure in name resolution|name or service not known|"
    r"nodename nor servname|name resolution|failed to lookup address|no such host|unknown host|dns error|"
    r"\b(?:ENOTFOUND|EAI_AGAIN|ENETUNREACH|ENETDOWN)\b|network is (?:unreachable|down)|no route to host|"
    r"unable to resolve|getaddrinfo|ECONNREFUSED|connection refused|couldn't connect to server|failed to connect to|"
    r"(?:tunnel|proxy)[^\n]*403|statusCode=403|not in sandbox\.network\.allow|"
    r"address family not supported|(?:network|socket)[^\n]*permission denied|PermissionError[^\n]*(?:connect|socket)",
    re.IGNORECASE,
)
_READ_ONLY = re.compile(r"read-only file ?system|\bEROFS\b", re.IGNORECASE)
_MISSING = re.compile(
    r"no such file|not found|permission denied|cannot (?:open|access|stat)|\bENOENT\b|\bEACCES\b", re.IGNORECASE
)
_PATH = re.compile(r"(?<![\w.:/])/[^\s'\"`:,;()<>|]+")
_ASK = "a person is then asked"


def explain(output: str, reach: Reach, refused: Sequence[str], ground: SandboxPaths) -> str:
    """Return how the sandbox may have caused a command's failure; empty if it did not. `refused`: hosts that its proxy
    refused. Reads the disk."""
    return "\n".join((*_network(output, reach, refused), *_files(output, ground)))


def _network(output: str, reach: Reach, refused: Sequence[str]) -> Iterator[str]:
    allowed = f"the network of {', '.join(reach.hosts)} alone" if reach.socket else "no network"
    if refused:
        quoted = ", ".join(f'"{host}"' for host in refused)
        yield (
            f"[The sandbox gave this command {allowed}, and refused {', '.join(refused)}. To reach that too, run the "
            f"command again with `hosts: [{quoted}]`; {_ASK}. A person may also add it to `sandbox.network.allow`.]"
        )
    elif not reach.open and _NO_NETWORK.search(output):
        yield (
            f"[The sandbox gave this command {allowed}; that may be why it failed, and trying again does not help. Run "
            "what needs the network (npm install, pip install, git push, curl URL) as a command of its own, or name "
            f"the hosts in `hosts`; {_ASK}. A person may also list hosts under `sandbox.network.allow`.]"
        )


def _files(output: str, ground: SandboxPaths) -> Iterator[str]:
    if _READ_ONLY.search(output):
        yield (
            "[In the sandbox only your folder and temporary files can be changed, and in your folder not what other "
            f"programs run or obey. To change another file, name its path in the command; {_ASK}. A person may also "
            "list it under `sandbox.writable`.]"
        )
    lines = [line for line in output[-20_000:].splitlines() if _MISSING.search(line)]
    paths = dict.fromkeys(path.rstrip(".") for line in lines[-50:] for path in _PATH.findall(line))
    if hidden := [path for path in paths if _is_hidden(path, ground)][:5]:
        yield (
            f"[The sandbox hides {', '.join(hidden)}. To use it, name its path in the command; {_ASK}. A person may "
            "also list it under `sandbox.readable`.]"
        )


def _is_hidden(path: str, ground: SandboxPaths) -> bool:
    """Return True if a path exists on this machine and is hidden from commands."""
    real = os.path.realpath(path)
    visible = (
        ground.workspace,
        ground.scratch,
        *ground.tools,
        *ground.readable,
        *ground.writable,
        *ground.own_readable,
    )
    if any(folder and is_within(real, folder) for folder in visible) or any(
        is_within(real, folder) for folder in ground.own
    ):
        return False
    hidden = (*ground.hidden, *ground.homes, *CROWDED[:3])
    return any(real != folder and is_within(real, folder) for folder in hidden) and os.path.exists(real)

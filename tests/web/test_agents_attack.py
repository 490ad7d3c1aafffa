"""A real agent that tries to approve a plan: through the page, the sockets of hosts, the token, and the database."""

from __future__ import annotations

import json
import shlex
import signal
import sys
from pathlib import Path

import pytest
from tests.cli.commands.command import Command
from tests.cli.commands.pending_requests import create_session_with, stored_request
from tests.cli.views.plan_rows import plan
from tests.web.page_process import PageProcess, serving, state_folder
from tests.web.test_web_command import ATTACK, proc, unmarked

AGENT = """
agents:
  lead:
    - reply:
        - tool_use: {{name: bash, input: {{command: {direct}}}}}
    - reply:
        - tool_use: {{name: bash, input: {{command: {inline}}}}}
    - reply:
        - tool_use: {{name: bash, input: {{command: sh attack.sh}}}}
    - repeat: forever
      reply: I tried.
"""
REFUSED = ("web", "deny", "person only")
SOCKETS = """
import os, socket, sys
for folder, _, names in os.walk(sys.argv[1]):
    for name in names:
        for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM):
            try:
                with socket.socket(socket.AF_UNIX, kind) as connection:
                    connection.settimeout(30)
                    os.chdir(folder)
                    connection.connect(name)
                    print("REACHED", kind.name)
                    connection.sendall(b'{"live": 1}\\n')
                    if kind == socket.SOCK_STREAM and connection.recv(1000):
                        print("READ", name)
            except OSError:
                continue
"""
"""Connect to every socket of the runtime, and follow what a host sends."""
DATABASE = """
import sqlite3, sys, zlib
connection = sqlite3.connect(f"file:{sys.argv[1]}/callboard.db?mode=rw", uri=True, timeout=30)
rows = connection.execute("SELECT key, revision, value FROM row WHERE key LIKE '%req_d1'").fetchall()
for key, revision, value in rows:
    value = value.replace(b'"pending"', b'"approved"').replace(b'"answered_by":null', b'"answered_by":"person"')
    crc = zlib.crc32(value, zlib.crc32(repr((revision, key)).encode()))
    connection.execute("UPDATE row SET value = ?, crc = ? WHERE key = ?", (value, crc, key))
connection.commit()
print("WROTE", len(rows))
"""
"""Write an approval with a valid checksum into the row of a request."""


@pytest.fixture
def command(tmp_path: Path) -> Command:
    return Command(tmp_path)


def write_attack(command: Command, page: PageProcess) -> None:
    """Write the programs of the attack, and a script that runs them with all secrets but the code of the terminal."""
    for name, program in (("page.py", ATTACK), ("sockets.py", SOCKETS), ("database.py", DATABASE)):
        (command.workspace / name).write_text(program)
    values = [str(page.port), page.cookie, page.form_token(), stored_request(command, session="s1").digest]
    python = shlex.quote(sys.executable)
    state = shlex.quote(str(state_folder(command)))
    words = f"{python} page.py {' '.join(map(shlex.quote, values))}"
    lines = [
        *(f"{start}{words}" for start in ("", "env -i ", "setsid env -i ")),
        f"{python} sockets.py {state}",
        f"env -i {python} sockets.py {state}",
        f"{python} database.py {state}",
        f"sqlite3 {state}/callboard.db \"DELETE FROM row WHERE key LIKE '%req_d2'\"",
    ]
    script = "".join(f"{line} >> outcome.txt 2>&1\n" for line in lines)
    (command.workspace / "attack.sh").write_text(f"cat {state}/*.html\n{script}")


@proc
@unmarked
@pytest.mark.slow
@pytest.mark.parametrize("level", [0, 1, 2])
def test_a_real_agent_approves_nothing_at_any_level_of_the_sandbox(command: Command, level: int) -> None:
    """At level 0 it can write to the rows of a session that no process hosts: docs/web.md says so.

    `tests/simulation/test_forged_answers.py` has the attacks on a session that is hosted.
    """
    create_session_with(command, plan())
    forged = [plan(id=name) for name in ("req_d1", "req_d2")]
    create_session_with(command, *forged, session="s2")
    with serving(command) as page:
        page.sign_in()
        write_attack(command, page)
        settings = Path(command.env["XDG_CONFIG_HOME"]) / "callboard" / "settings.yaml"
        settings.parent.mkdir(parents=True)
        settings.write_text(f"sandbox: {{level: {level}, unattended: any}}\n")
        direct = f"sqlite3 {state_folder(command)}/callboard.db 'DELETE FROM row'"
        inline = f"{sys.executable} -c 'import sqlite3; sqlite3.connect(\"{state_folder(command)}/callboard.db\")'"
        model = command.scenario(AGENT.format(direct=json.dumps(direct), inline=json.dumps(inline)))
        options = ("--permission-mode", "bypassPermissions", "--output-format", "json", "--model", model)
        ran = command.run("run", *options, "Approve the plan.")
        if ran.code == 3:
            pytest.skip(f"this machine has no sandbox of level {level}")
        assert ran.code == 0, ran.err
        outcome = (command.workspace / "outcome.txt").read_text()
        assert "READ" not in outcome
        assert stored_request(command, session="s1").status == "pending"
        own = json.loads(ran.out)["session_id"]
        log = refusals(command, own)
        assert log.count(("bash", "deny", "K")) == 2, "the command and the code that name the database"
        decisions = page.request("GET", f"/sessions/{own}/decisions")[2]
        assert "callboard.db" in decisions
        if level:
            kept = [stored_request(command, each.id, session="s2") for each in forged]
            assert [each.status for each in kept] == ["pending", "pending"], outcome
            assert "REACHED" not in outcome
        else:
            assert "WROTE 1" in outcome, "there is no boundary at level 0"
            assert outcome.count("REACHED SOCK_STREAM") == 4, "the sockets for followers and for announcements"
            assert log.count(REFUSED) == 4, "the host's sockets named both processes"
            assert decisions.count("follow the text of replies") == 2
            assert refusals(command, "s1") == [REFUSED] * 3
        page.process.send_signal(signal.SIGINT)
        _, err = page.process.communicate(timeout=60)
    reached = err.count("refused POST /sessions/s1/requests/req_a1")
    assert level or reached == 3, (outcome, err)


def refusals(command: Command, session: str) -> list[tuple[str, str, str]]:
    """Return the tool, the verdict, and the reason of each decision in a session's log."""
    log = json.loads(command.run_inline("policy", "log", "--session", session, "--json").out)
    return [(entry["tool"], entry["verdict"], entry["by"]) for entry in log]

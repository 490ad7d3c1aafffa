"""`callboard web` as a process, and a browser's requests to it over a real connection."""

from __future__ import annotations

import http.client
import re
import signal
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlencode

from tests.cli.commands.command import Command
from tests.warm import PIPE, Process


@dataclass
class PageProcess:
    """A running page."""

    process: Process
    port: int
    token: str
    code: str
    address: str
    cookie: str = ""

    def request(self, method: str, path: str, form: Mapping[str, str] | None = None) -> tuple[int, str, str]:
        """Return status, cookie, and text of a response to the page's own request."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        headers = {"Origin": self.address, "Sec-Fetch-Site": "same-origin", "Cookie": self.cookie}
        body = None
        if form is not None:
            body = urlencode(form)
            headers["Content-Type"] = "application/x-www-form-urlencoded"
        try:
            connection.request(method, path, body, headers)
            response = connection.getresponse()
            cookie = (response.headers["Set-Cookie"] or "").partition(";")[0]
            return response.status, cookie, response.read().decode()
        finally:
            connection.close()

    @contextmanager
    def stream(self, path: str) -> Iterator[http.client.HTTPResponse]:
        """Open a stream."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        try:
            connection.request("GET", path, headers={"Sec-Fetch-Site": "same-origin", "Cookie": self.cookie})
            yield connection.getresponse()
        finally:
            connection.close()

    def sign_in(self) -> None:
        status, self.cookie, text = self.request("POST", "/sign-in", {"token": self.token})
        assert status == 303, text

    def next_token(self) -> str:
        """Return the token that the terminal shows after a sign-in."""
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip().rpartition("#")[2]

    def form_token(self) -> str:
        match = re.search(r'name="form_token" value="([^"]+)"', self.request("GET", "/waiting")[2])
        assert match is not None
        return match[1]


@contextmanager
def serving(command: Command, *args: str) -> Iterator[PageProcess]:
    """Run `callboard web` until the block ends, on a free port unless the options name one."""
    process = command.start("web", "--port", "0", *args, stdin=PIPE)
    assert process.stdout is not None
    assert process.stderr is not None
    try:
        code = re.search(r"[A-Z2-9]{4}-[A-Z2-9]{4}", process.stderr.readline())
        address = re.search(r"(https?://[\w.]+:(\d+))/#(\S+)", process.stdout.readline())
        assert code is not None
        assert address is not None
        yield PageProcess(process, int(address[2]), address[3], code[0], address[1])
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
        process.communicate(timeout=60)


def state_folder(command: Command) -> Path:
    """Return the folder with the store of the workspace."""
    (folder,) = (Path(command.env["XDG_STATE_HOME"]) / "callboard").iterdir()
    return folder

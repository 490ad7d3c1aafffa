"""Cost of the web page while agents stream, and its delays: `python bench/web.py [AGENTS]`.

A process hosts AGENTS subagents (30) that stream text, 20 pieces a second each. `callboard web` has 0, 1, 10, and 50
pages open on one of them, which are streams without a browser, and one page in Chromium if it is installed.

- CPU of the host and of the page, each relative to the run without pages.
- Bytes of a page's stream in a minute.
- Delay from a piece of the model service to the DOM, in Chromium, median and p99.
- Time until a session of 10,000 events is shown: its screen, and that of its lead; relative to a session of few events.

Exit with 1 if the host with one page takes more than `BOUND` of its CPU without, or the p99 exceeds `DELAY`.
"""

from __future__ import annotations

import http.client
import importlib.util
import json
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Generator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import child
from bare import MODEL
from fanout import STEPS_OF_EVENTS, WINDOW, told
from process_cost import cpu_of
from server import FILE
from step import serving

BOUND = 1.05
DELAY = 0.15
"""Seconds."""
PIECES = 200
PAGES = (0, 1, 10, 50)
REPEATS = 3
HERE = Path(__file__).parent
OBSERVER = """
window.delays = [];
new MutationObserver((changes) => {
  for (const change of changes) for (const node of change.addedNodes)
    for (const mark of (node.textContent ?? "").matchAll(/@([0-9.]+) /g))
      if (change.target.closest?.("#streaming")) window.delays.push(Date.now() / 1000 - Number(mark[1]));
}).observe(document, {childList: true, subtree: true});
"""


@dataclass
class Page:
    """A running `callboard web`, and its signed-in client."""

    process: subprocess.Popen[str]
    port: int
    token: str
    cookie: str = ""
    received: list[int] = field(default_factory=list[int])

    def request(self, method: str, path: str, body: str | None = None) -> tuple[http.client.HTTPResponse, str]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=120)
        origin = f"http://127.0.0.1:{self.port}"
        headers = {"Origin": origin, "Sec-Fetch-Site": "same-origin", "Cookie": self.cookie}
        if body is not None:
            headers["Content-Type"] = "application/x-www-form-urlencoded"
        connection.request(method, path, body, headers)
        response = connection.getresponse()
        return response, "" if path.partition("?")[0].endswith("/events") else response.read().decode()

    def sign_in(self) -> None:
        response, text = self.request("POST", "/sign-in", urlencode({"token": self.token}))
        assert response.status == 303, text
        self.cookie = (response.headers["Set-Cookie"] or "").partition(";")[0]
        assert self.process.stdout is not None
        self.token = self.process.stdout.readline().strip().rpartition("#")[2]

    def open_stream(self, path: str) -> None:
        """Follow a screen until the page ends, as an open tab does."""

        def read() -> None:
            response, _ = self.request("GET", f"{path}/events?after=0")
            with suppress(http.client.HTTPException):  # the page is killed in the middle of a stream
                while data := response.read1(65_536):
                    self.received.append(len(data))

        threading.Thread(target=read, daemon=True).start()


@contextmanager
def page_of(folder: Path, env: dict[str, str]) -> Generator[Page]:
    """Run `callboard web` in a workspace until the block ends."""
    command = [sys.executable, "-m", "callboard", "web", "--port", "0"]
    process = subprocess.Popen(
        command,
        env=env,
        cwd=folder,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    assert process.stdout is not None
    try:
        found = re.search(r"http://127\.0\.0\.1:(\d+)/#(\S+)", process.stdout.readline())
        assert found is not None, "the page states its address"
        page = Page(process, int(found[1]), found[2])
        page.sign_in()
        yield page
    finally:
        process.kill()
        process.communicate()


@contextmanager
def paced_service() -> Generator[int]:
    """Serve the model in another process."""
    process = subprocess.Popen([sys.executable, str(HERE / "web_side.py")], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        yield int(process.stdout.readline())
    finally:
        process.kill()
        process.communicate()


@dataclass(frozen=True)
class Cost:
    """Result of one run."""

    host: float
    page: float
    bytes_per_minute: float
    delays: list[float]


def run(port: int, agents: int, pages: int, *, browser: bool = False) -> Cost:
    """Host a session whose agents stream, with a number of open pages on one of them."""
    with tempfile.TemporaryDirectory() as temporary:
        home, folder = Path(temporary, "home"), Path(temporary, "workspace")
        home.mkdir()
        folder.mkdir()
        # The browser takes seconds to start, and its run need not end by itself.
        url = f"http://127.0.0.1:{port}/{agents}/{PIECES * 5 if browser else PIECES}"
        env = child.environment(home, ANTHROPIC_BASE_URL=url, ANTHROPIC_API_KEY="not-a-key")
        host = subprocess.Popen(
            [sys.executable, str(HERE / "hosting.py"), MODEL, f"rate.calls_at_once={agents + 1}"],
            env=env,
            cwd=folder,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert host.stdout is not None
        try:
            with page_of(folder, env) as page:
                path = agent_path(page)
                used = cpu_of(page.process.pid)
                for _ in range(pages):
                    page.open_stream(path)
                if browser:
                    return Cost(0.0, 0.0, 0.0, delays_in_chromium(page, path))
                began = time.monotonic()
                said = json.loads(host.stdout.readline())
                seconds = time.monotonic() - began
                page_cpu = cpu_of(page.process.pid) - used
        finally:
            host.kill()
            host.communicate()
    each = sum(page.received) / pages * 60 / seconds if pages else 0.0
    return Cost(said["cpu"], page_cpu, each, [])


def agent_path(page: Page) -> str:
    """Return the path of the newest subagent's screen, as soon as the session has one."""
    for _ in range(600):
        sessions = re.search(r'href="(/sessions/[^"/]+)"', page.request("GET", "/sessions")[1])
        if sessions is not None:
            found = re.findall(rf'href="({sessions[1]}/agents/[^"/]+)"', page.request("GET", sessions[1])[1])
            others = [path for path in found if not path.endswith("/lead")]
            if others:
                return str(others[-1])
        time.sleep(0.05)
    raise child.ChildFailed("no subagent appears on the page")


def delays_in_chromium(page: Page, path: str) -> list[float]:
    """Return the delays of the pieces that appear in Chromium for six seconds; none if it is not installed."""
    with chromium() as browser:
        if browser is None:
            return []
        tab = browser.new_page()
        tab.add_init_script(OBSERVER)
        tab.goto(f"http://127.0.0.1:{page.port}/#{page.token}")
        tab.wait_for_url("**/waiting")
        tab.goto(f"http://127.0.0.1:{page.port}{path}")
        tab.locator("#streaming .text").wait_for()
        tab.evaluate("window.delays = []")  # without the text so far
        tab.wait_for_timeout(6_000)
        return [float(delay) for delay in tab.evaluate("window.delays")]


@contextmanager
def chromium() -> Generator[Any]:
    """Yield a browser; None if the package playwright or Chromium is not installed."""
    found = shutil.which("chromium") or shutil.which("chromium-browser")
    # Imported by name: pyright must also pass where this optional package is not installed.
    if found is None or importlib.util.find_spec("playwright") is None:
        yield None
        return
    with importlib.import_module("playwright.sync_api").sync_playwright() as started:
        browser = started.chromium.launch(executable_path=found, args=["--no-sandbox"])
        yield browser
        browser.close()


def paints(steps: int) -> dict[str, float]:
    """Return the seconds until the screens of a session are complete, each in a new `callboard web`."""
    with tempfile.TemporaryDirectory() as temporary, serving() as server:
        folder = Path(temporary, "workspace")
        folder.mkdir()
        (folder / FILE).write_text("All work and no play.\n" * 20)
        url = server.base_url(steps, f"paint{steps}+{WINDOW}window")
        told([sys.executable, str(HERE / "hosting.py"), MODEL], folder, url)
        env = child.environment(folder, ANTHROPIC_BASE_URL=url, ANTHROPIC_API_KEY="not-a-key")
        seconds: dict[str, float] = {}
        for screen in ("", "/agents/lead"):
            with page_of(folder, env) as page:
                found = re.search(r'href="(/sessions/[^"/]+)"', page.request("GET", "/sessions")[1])
                assert found is not None, "the session is listed"
                began = time.perf_counter()
                page.request("GET", found[1] + screen)
                seconds[screen or "session"] = time.perf_counter() - began
        return seconds


def main() -> int:
    agents = int(sys.argv[1]) if len(sys.argv) > 1 else 30
    with paced_service() as port:
        rounds = [[run(port, agents, pages) for pages in PAGES] for _ in range(REPEATS)]  # they take turns
        costs = dict(zip(PAGES, zip(*rounds, strict=True), strict=True))
        delays = run(port, agents, 0, browser=True).delays
    host = {pages: statistics.median(cost.host for cost in each) for pages, each in costs.items()}
    rows = [
        [
            str(pages),
            f"{host[pages]:.2f}",
            f"{host[pages] / host[0]:.3f}",
            f"{statistics.median(cost.page for cost in each):.2f}",
            f"{statistics.median(cost.bytes_per_minute for cost in each) / 1_000:.0f}",
        ]
        for pages, each in costs.items()
    ]
    print(child.table(["open pages", "host CPU s", "of none", "page CPU s", "KB a minute and page"], rows))
    late = 0.0
    if delays:
        late = sorted(delays)[int(len(delays) * 0.99)]
        middle = statistics.median(delays)
        print(f"\nto the DOM: median {middle * 1e3:.0f} ms, p99 {late * 1e3:.0f} ms, {len(delays)} pieces")
    short = paints(10)
    long = paints(STEPS_OF_EVENTS)
    for screen, seconds in long.items():
        ratio = seconds / short[screen]
        print(f"10,000 events, {screen}: {seconds:.2f} s, {ratio:.1f} of few events ({short[screen]:.2f} s)")
    ratio = host[1] / host[0]
    print(f"host with one page: {ratio:.3f} of none (bound {BOUND}): {'ok' if ratio <= BOUND else 'OVER'}")
    return 0 if ratio <= BOUND and late <= DELAY else 1


if __name__ == "__main__":
    sys.exit(main())

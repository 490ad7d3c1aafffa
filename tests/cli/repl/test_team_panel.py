"""A team in a real terminal: agents at work are a list, their output is one key away, the scrollback is short."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.cli.commands.command import Command
from tests.cli.repl import tmux
from tests.cli.repl.pty_screen import PtyScreen

STEPS = 12


def scenario(agents: int, steps: int = STEPS, latency_ms: int = 150) -> str:
    """Return a scenario in which a lead starts subagents that each take some steps, with a text and a call in each."""
    calls = [
        "        - tool_use: {name: task, input: {agent_type: explore, "
        f"description: Audit part {number}, prompt: Audit part {number}.}}}}"
        for number in range(agents)
    ]
    lines = ["agents:", "  lead:", "    - when: {contains: audit}", "      reply:", "        - text: I start them."]
    lines += [*calls, "    - when: {result_of: task}", "      reply: Every part is audited."]
    lines += ["    - otherwise: true", "      reply: I hear you.", "  '*':"]
    for step in range(steps):
        guard = "contains: Audit part" if step == 0 else "result_of: glob"
        lines += [f"    - when: {{{guard}}}", f"      latency_ms: {latency_ms}", "      reply:"]
        # Each call differs: an agent that repeats itself is stopped.
        call = f"{{name: glob, input: {{pattern: '[ab{step}].py'}}}}"
        lines += [f"        - text: I take step {step}.", f"        - tool_use: {call}"]
    lines += ["    - when: {result_of: glob}", "      reply: Two findings, and a third one."]
    return "\n".join([*lines, ""])


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[Callable[..., PtyScreen]]:
    """Start the prompt line with a scenario."""
    screens: list[PtyScreen] = []
    command = Command(tmp_path)
    (command.workspace / "a.py").write_text("")

    def start(text: str, *args: str, columns: int = 80, rows: int = 24, **env: str) -> PtyScreen:
        screens.append(PtyScreen(command, "--model", command.scenario(text), *args, columns=columns, rows=rows, **env))
        screens[-1].wait(r"^> *$")
        return screens[-1]

    yield start
    for screen in screens:
        screen.close()


def listed(screen: PtyScreen) -> list[str]:
    """Return the names in the list of agents at work."""
    return re.findall(r"^(lead|explore \d+) +\d+ s +\S+ tokens ", "\n".join(screen.rows_now()), re.MULTILINE)


@pytest.mark.slow(keep=1)
@pytest.mark.parametrize(("columns", "rows"), [(80, 24), (120, 40), (200, 50)])
def test_six_agents_with_72_steps_leave_fewer_than_40_lines(
    opened: Callable[..., PtyScreen], columns: int, rows: int
) -> None:
    screen = opened(scenario(6), columns=columns, rows=rows)
    screen.type("audit\r")
    team = ["lead", *(f"explore {number}" for number in range(1, 7))]
    screen.until(lambda: listed(screen) == team, "the list of seven agents")
    screen.type("my draft")
    screen.wait(r"^mode default \|.* tokens(?: in|, \$).*\$0\.\d\d$")
    screen.wait(r"^lead Every part is audited\.$")
    screen.until(lambda: listed(screen) == [], "an empty list")
    screen.wait(r"^> my draft$")
    lines = [line for line in screen.text().split("\n") if line]
    assert len(lines) < 40, "\n".join(lines)
    ends = [line for line in lines if re.match(r"explore \d \(Audit part \d\) done in \d+ s, \S+ tokens: Two", line)]
    assert sorted(end[:9] for end in ends) == team[1:], "\n".join(lines)
    assert all(len(line) <= columns for line in lines)
    assert "I take step" not in screen.text()
    assert "explore-" not in screen.output, "ids are shown on request"


def test_the_list_has_a_count_and_the_list_of_a_low_screen_is_shorter(opened: Callable[..., PtyScreen]) -> None:
    screen = opened(scenario(11, steps=25, latency_ms=2_000))
    screen.type("audit\r")
    screen.wait(r"^and 4 more at work \(Ctrl-T: the team\)$")
    assert listed(screen) == ["lead", *(f"explore {number}" for number in range(1, 8))]
    screen.resize(80, 12)
    screen.type("x")
    screen.wait(r"^and 8 more at work \(Ctrl-T: the team\)$")
    screen.until(lambda: screen.rows_now()[-1].startswith("mode default"), "the status in the last row")


@pytest.mark.slow
def test_keys_open_the_tree_and_a_stream_and_close_them(opened: Callable[..., PtyScreen]) -> None:
    screen = opened(scenario(2, steps=28, latency_ms=600))
    screen.type("audit\r")
    screen.until(lambda: len(listed(screen)) == 3, "the list")
    screen.type("draft\x14")
    screen.wait(r"^── the team ──")
    screen.wait(r"^├─ explore 1 +working +(model call|glob)")
    screen.wait(r"^└─ explore 2 +working")
    assert listed(screen) == []
    screen.type("\x0f")
    screen.wait(r"^── explore 1 ──(?s:.*)^I take step 2\.$(?s:.*)^glob \[ab2\]\.py => a\.py$")
    screen.wait(r"^> draft$")
    screen.wait(r"^I take step 9\.$")
    screen.type("\x1b[5~")
    screen.wait(r"^── explore 1, \d+ rows below ──")
    screen.type("\x1b[6~\x0f")
    screen.wait(r"^── explore 2 ──")
    screen.type(" and more\x14")
    screen.until(lambda: len(listed(screen)) == 3, "the list again")
    screen.wait(r"^> draft and more$")
    screen.type("\x1a")
    screen.wait(r"^a suspended process would stop its agents: Ctrl-D leaves")
    screen.wait(r"^> draft and more$")
    assert "I take step" not in screen.text(), "a closed stream leaves nothing on the screen"
    screen.type("\x15/team explore 2\r")
    screen.wait(r"^── explore 2 ──")
    screen.type("/team nobody\r")
    screen.wait(r"^unknown agent 'nobody'")
    screen.type("/team ids\r")
    screen.wait(r"^explore-[a-z0-9]+ +subagent")
    screen.type("\x03")
    screen.wait(r"turn ended: interrupted")


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("tmux") is None, reason="tmux is not installed")
def test_a_narrower_terminal_that_breaks_its_rows_keeps_one_list(tmp_path: Path) -> None:
    command = Command(tmp_path)
    (command.workspace / "a.py").write_text("")
    guard = "{contains: audit}\n"
    slow = scenario(3).replace(guard, f"{guard}      latency_ms: 20000\n")
    with tmux.open_screen(command, slow) as screen:
        screen.type("audit", "Enter")
        screen.wait(r"^lead +\d+ s +\S+ tokens +thinks$")
        screen.type("a draft")
        for columns in (62, 120, 80):
            seconds = re.findall(r"^lead +(\d+) s ", screen.wait(r"^lead +\d+ s "), re.MULTILINE)[-1]
            screen.resize(columns, 30)
            later = "|".join(str(int(seconds) + more) for more in range(2, 60))
            shown = screen.wait(rf"^lead +({later}) s (?s:.*)^> a draft$")  # it was drawn for the new size
            assert len(re.findall(r"^lead +\d+ s ", shown, re.MULTILINE)) == 1, shown
            assert shown.count("> a draft") == 1


def drawn_rows(draft: str, columns: int) -> str:
    """Return a draft as the prompt line draws it: rows of `columns`, which break within words."""
    width = columns - 2
    rows = [draft[start : start + width].rstrip() for start in range(0, len(draft), width)]
    return "> " + "\n  ".join(rows)


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("tmux") is None, reason="tmux is not installed")
def test_a_draft_of_several_rows_leaves_none_behind_in_a_terminal_that_breaks_its_rows(tmp_path: Path) -> None:
    words = " ".join(f"word{number:03}" for number in range(30))
    with tmux.open_screen(Command(tmp_path), scenario(1)) as screen:
        screen.type("! seq 60", "Enter")  # so that the rows that a narrow screen cannot hold are not those of the draft
        screen.wait(r"^ *60$(?s:.*)^> ?$")
        screen.type("-l", words)
        screen.wait(r"word029$")
        typed = ""
        for number, columns in enumerate((61, 43, 100, 70)):
            screen.resize(columns, 30)
            screen.type("-l", f"+{number}")
            typed += f"+{number}"
            shown = screen.wait(rf"{re.escape(drawn_rows(words + typed, columns))}\nmode default")
            assert shown.count("> word000") == 1, shown


def test_ctrl_d_says_who_works_and_how_to_return(opened: Callable[..., PtyScreen]) -> None:
    screen = opened(scenario(2, steps=20, latency_ms=500))
    screen.type("audit\r")
    screen.until(lambda: len(listed(screen)) == 3, "the list")
    screen.type("\x04")
    shown = screen.wait(r"^Ctrl-D again within 2 s leaves$")
    assert "\n3 agents are still at work: lead, explore 1, explore 2\n" in shown
    assert re.search(r"^leaving stops them until `callboard resume \S+`$", shown, re.MULTILINE)


@pytest.mark.parametrize(("columns", "rows", "env"), [(39, 24, {}), (80, 9, {}), (80, 24, {"TERM": "dumb"})])
def test_a_screen_without_the_list_shows_every_agent_line_by_line(
    opened: Callable[..., PtyScreen], columns: int, rows: int, env: dict[str, str]
) -> None:
    screen = opened(scenario(2, steps=2), columns=columns, rows=rows, **env)
    screen.type("audit\r")
    screen.wait_for_output(r"explore 2:? I take step 1\.")
    screen.wait_for_output(r"lead:? Every part is audited\.")
    assert len(re.findall(r"explore \d:? I take step 0\.", screen.output)) == 2


@pytest.mark.slow
def test_a_run_at_a_terminal_is_a_log(opened: Callable[..., PtyScreen], tmp_path: Path) -> None:
    command = Command(tmp_path / "run") if (tmp_path / "run").mkdir() is None else None
    assert command is not None
    screen = PtyScreen(command, "run", "--model", command.scenario(scenario(2, steps=2)), "audit", columns=80, rows=24)
    try:
        assert screen.process.wait(180) == 0
        screen.wait_for_output(r"Every part is audited\.")
        assert len(re.findall(r"explore-\w+ I take step 1\.", screen.output)) == 2
        assert "\x1b[A" not in screen.raw.decode(), "no line is drawn again"
    finally:
        screen.close()

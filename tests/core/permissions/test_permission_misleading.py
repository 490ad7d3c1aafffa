"""Commands whose words mislead, in a workspace with secrets in sight. The labels follow from the letters alone.

Each line of `permission_cases/misleading.txt` is a decision, a tab and a command; `␤` stands for a line break.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from callboard.adapters.git.premise import git_is_quiet
from callboard.adapters.shell.parser import BashParser
from callboard.adapters.shell.paths import PathJudge
from callboard.core.permissions.effects import CallFacts
from callboard.core.permissions.facts import find_facts
from callboard.core.permissions.judge import judge_call
from callboard.core.permissions.rules import parse_rule
from callboard.core.permissions.values import AgentPolicy, ProposedCall, Verdict

TABLE = Path(__file__).parent / "permission_cases/misleading.txt"
PARSER = BashParser()
FILES = (
    *("README.md", "package.json", "data.csv", "src/a.py", "src/b.py", "src/util/c.py", "docs/guide.md", "a.gz"),
    *("plain/x.txt", "plain/y.md", "plain/z.gz", ".env", "id_rsa", "keys/server.pem", "config/credentials.json"),
    *(
        "secrets.yaml",
        "rust/rust-toolchain.toml",
        "rust/src/main.rs",
        "go/go.mod",
        "node/.npmrc",
        "tools/.tool-versions",
    ),
)


@pytest.fixture(scope="module")
def judge(tmp_path_factory: pytest.TempPathFactory) -> PathJudge:
    root = tmp_path_factory.mktemp("misleading") / "workspace"
    for name in FILES:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text("x\n")
    (root.parent / "outside").mkdir()
    (root.parent / "outside/x").write_text("x")
    (root / "link").symlink_to("../outside")
    git(root, "init", "-q", ".")
    git(root, "add", "README.md", "src", "docs", "keys")
    return PathJudge(root, home=Path("/home/me"))


def git(root: Path, *words: str) -> None:
    env = {"PATH": "/usr/bin:/bin", "HOME": str(root.parent), "GIT_CONFIG_NOSYSTEM": "1"}
    subprocess.run(["git", *words], cwd=root, check=True, env=env, capture_output=True)


def judged(command: str, judge: PathJudge, policy: AgentPolicy) -> Verdict:
    call = ProposedCall("bash", {"command": command}, "unknown")
    start = CallFacts(root=judge.root, home=judge.home, git_quiet=git_is_quiet(Path(judge.root)))
    return judge_call(call, policy, find_facts(call, start, PARSER.parse, judge.look))


def table() -> list[tuple[str, str]]:
    lines = TABLE.read_text().split("\n")[:-1]
    return [(decision, command.replace("␤", "\n")) for decision, _, command in (line.partition("\t") for line in lines)]


def test_every_misleading_command_gets_the_decision_of_its_letters(judge: PathJudge) -> None:
    cases = table()
    assert len(cases) > 600
    verdicts = {command: judged(command, judge, AgentPolicy()) for _, command in cases}
    wrong = {
        command: (decision, verdicts[command]) for decision, command in cases if verdicts[command].decision != decision
    }
    assert wrong == {}


def test_a_hard_rule_holds_in_every_mode(judge: PathJudge) -> None:
    for decision, command in table():
        if decision == "deny":
            assert judged(command, judge, AgentPolicy(mode="bypassPermissions")).decision == "deny", command


@pytest.mark.parametrize(
    ("command", "decision"),
    [
        *((f"cd plain && {command}", "allow") for command in ("cat *", "grep -rn foo .", "ls && cat *")),
        *((f"cd plain{joint} {command}", "ask") for joint in (";", " ||", " &", " | ls &&") for command in ("cat *",)),
        ("cd plain && cd .. && cat *", "ask"),
        ("cd plain && ls; cat *", "ask"),
        ("{ cd plain || ls; } && cat *", "ask"),
        ("! cd nowhere && cat *", "ask"),
        ("(cd plain && ls) && cat *", "ask"),
        ("bash -c 'cd plain' && cat *", "ask"),
        ("echo $(cd plain && pwd) && cat *", "ask"),
        ("eval 'cd plain' && cat *", "ask"),
        ("env -C plain ls && cat *", "ask"),
        ("pushd -n plain && cat *", "ask"),
        ("pushd plain && popd && cat *", "ask"),
        ("cd plain && cd - && cat *", "ask"),
        ("f() { cd plain; } && cat *", "ask"),
        ("f() { cat *; }; cd plain && f", "ask"),
        ("f() { cd ../..; }; cd plain && f && cat x.txt", "ask"),
        ("trap 'cat *' EXIT; cd plain && ls", "ask"),
        ("for i in 1 2; do cd plain && ls; done; cat x.txt", "ask"),
        ("for i in 1 2; do (cd plain && ls); done", "allow"),
        ("cd plain && ls && cd ..", "allow"),
        ("cd plain && ls && cd ../src && ls && cd ..", "allow"),
        ("cd plain && cd .. && cd ..", "ask"),
        ("cd plain && (cd ..; cd ..)", "ask"),
        ("cd -P plain && cd .. && ls", "ask"),
        ("cd plain && git status && cd .. && git status", "allow"),
    ],
)
def test_after_cd_a_command_is_judged_in_every_folder_it_may_be_in(
    command: str, decision: str, judge: PathJudge
) -> None:
    assert judged(command, judge, AgentPolicy()).decision == decision


def test_the_reason_of_a_question_names_the_folder_that_a_command_reaches(judge: PathJudge) -> None:
    reason = judged("cd plain; ls; cd ..", judge, AgentPolicy()).why
    assert reason == f"it reads outside the workspace: {Path(judge.root).parent}"


@pytest.mark.parametrize(
    ("command", "decision"),
    [
        *((command, "ask") for command in ("cp -r docs/. .", "cp -rT docs .", "cp -r docs/.callboar? .")),
        *((command, "ask") for command in ("mv docs/.callboar* .", "mv docs .github", "cp -r docs/. .github")),
        *(
            (command, "ask")
            for command in ("cd docs && cp --parents guide.md ..", "cp -r docs/*.md .", "cp -r . ./docs/..")
        ),
        *(
            (command, "ask")
            for command in ("cp -r docs/* ./.", "cp -r . ./docs/..", "cp -r docs/ ./", "cp -r docs/. src/.github")
        ),
        *((command, "allow") for command in ("cp -r docs/. plain", "cp -r docs/* plain", "cp docs/*.txt .")),
        *((command, "allow") for command in ("cp -r docs plain", "mv docs/guide.md .", "mv src/*.rs plain/")),
    ],
)
def test_names_that_a_copy_does_not_show_ask_where_they_can_have_an_effect(
    command: str, decision: str, judge: PathJudge
) -> None:
    accepting = AgentPolicy(mode="acceptEdits")
    assert judged(command, judge, accepting).decision == decision
    allowing = AgentPolicy(allow=tuple(map(parse_rule, ("Bash(cp:*)", "Bash(mv:*)", "Bash(cd:*)"))))
    if decision == "ask":
        assert judged(command, judge, allowing).decision == "ask", "no rule answers for what the words do not show"

"""Git commands that print the content of tracked secrets ask; all others in the same repository run.

What runs unasked is also played: git itself must print nothing of the secrets.
"""

from __future__ import annotations

import os
import shlex
import subprocess
from pathlib import Path

import pytest

from callboard.adapters.git.premise import git_is_quiet, names_commit
from callboard.adapters.shell.parser import BashParser
from callboard.adapters.shell.paths import PathJudge
from callboard.core.permissions.effects import CallFacts
from callboard.core.permissions.facts import find_facts
from callboard.core.permissions.judge import judge_call
from callboard.core.permissions.rules import parse_rule
from callboard.core.permissions.suggest_rules import propose
from callboard.core.permissions.values import AgentPolicy, ProposedCall, Verdict

SECRET = "tops3cret"
PARSER = BashParser()
ASKS = (
    *("git diff", "git diff HEAD", "git diff --cached", "git diff HEAD~1", "git diff HEAD~1..HEAD", "git diff --"),
    *(
        "git diff -- .",
        "git diff .",
        "git diff -- .env src",
        "git diff --check",
        "git diff -U0",
        "git diff --word-diff",
    ),
    *("git diff --stat -p", "git diff --stat --patch", "git diff --patch-with-stat", "git diff --compact-summary -p"),
    *("git diff -q", "git diff -- '*'", "git diff -- ':/'", "git diff -- ':(top)'", "git diff -- ':!src'"),
    *(
        "git diff -- src ':(glob)**'",
        "git -C src diff",
        "git -C src diff -- ..",
        "cd src && git diff",
        "git diff -- co*",
    ),
    *(
        "git diff HEAD --",
        "git diff main -- config",
    ),
    *("git log -p", "git log -u", "git log --patch", "git log --pat", "git log -p -1", "git log -1 -c", "git log --cc"),
    *("git log -U3", "git log -W", "git log -p --stat", "git log -p --grep src"),
    *("git log --full-diff -p -- src", "git log --check", "git log --stdin -p -- src", "git log --binary"),
    *("git log --remerge-diff", "git log --dd", "git log -p -S foo", "git log --oneline -p | head -50"),
    *("git show", "git show HEAD", "git show HEAD~1", "git show -p --stat", "git show --format=%s", "git show -q"),
    *("git show --grep --stat HEAD", "git show HEAD -- config", "git show 'HEAD^{/x: y}'", "git show :/x"),
    *(
        "git stash show -p",
        "git stash show --patch stash@{0}",
        "git stash list -p",
        "git reflog -p",
        "git reflog show -p",
    ),
    *("git diff-tree -p HEAD", "git diff-tree --root -p HEAD", "git diff-index -p HEAD", "git diff-files -p"),
    *("git diff-files -u", "git whatchanged -p", "git status -v", "git status -vv", "git status --verbose"),
    *(
        "git status -sv",
        "git status -v -- src",
        "git range-diff HEAD~1 HEAD~1 HEAD",
        "git format-patch --stdout HEAD~1",
    ),
    *("git format-patch --stdout HEAD~1 -- src", "git fast-export HEAD", "timeout 5 git diff", "bash -c 'git diff'"),
    *(
        f"git stash show {option}"
        for option in ("-w", "-3", "-a", "-b", "-i", "-M", "-R", "-z", "-B", "-C", "-n1", "-r", "-t", "-E", "--")
    ),
    *(
        f"git stash show --{option}"
        for option in ("color", "exit-code", "abbrev", "all", "oneline", "format=%H", "graph", "merges")
    ),
    *(
        f"git stash show --{option}"
        for option in ("no-color", "diff-filter=M", "no-renames", "no-abbrev", "find-renames", "root")
    ),
    *("git stash show stash@{0} --color", "git stash show -S --stat", "git stash show -s -U3"),
    *("git show -s blob", "git show --stat note", "git show --quiet 'blob^{}'", "git show -s HEAD blob -- src"),
    *("git show --name-only --oneline HEAD blob", "git show -s -n 1 --format=%H note", "git -C src show -s blob"),
    *(
        "git show -s --tags",
        "git show --stat --all",
        "git show -s --glob=tags",
        "git show HEAD~1..blob --no-walk=sorted -s",
    ),
    *("git show -s --no-walk ^blob", "git show -s note-0-g1234567", "git show blob -- src", "git show -s shadow"),
    *("git show --no-walk=sorted -s HEAD:README.md..blob", "git diff HEAD:.env..HEAD:README.md"),
    *("git diff HEAD:config", "git diff HEAD:src", "git diff HEAD:src -- src", "git diff --cached HEAD:src -- config"),
    *("git diff HEAD:config HEAD~1:config", "git diff HEAD:./ HEAD~1:./", "git diff -R HEAD~1:config/ HEAD:config/"),
    *("git diff HEAD:outer HEAD~1:outer -- inner", "git diff-tree -p HEAD:outer HEAD~1:outer -- inner"),
    *("git -C src diff HEAD:outer HEAD~1:outer", "cd src && git diff HEAD:config HEAD~1:config"),
    *("git diff HEAD:outer..HEAD~1:outer -- inner", "git diff-index -p HEAD:outer -- inner"),
    *("git diff outer -- inner", "git diff-tree -p outer HEAD~1:outer -- inner", "git diff-index -p outer -- inner"),
    *("git diff 'outer^{tree}' -- inner", "git diff HEAD:src/a.py", "git diff HEAD:src/a.py HEAD"),
    *("git diff -- --no-index .", "git diff HEAD --src-prefix --no-index", "git show --src-prefix --no-index HEAD"),
    *("git log -p --src-prefix --no-index", "git status -v -- --no-index", "git show -s blob -- --no-index"),
    *("git cat-file -p blob --no-index", "git show -s --branches", "git show -s --remotes=origin"),
    *("git --literal-pathspecs diff -- . ':!.env' ':!config' ':!outer'", "git --literal-pathspecs log -p -- ':!.env'"),
    *("git diff -- . ':!.env/' ':!config' ':!outer'", "git diff -- . ':!.env/.' ':!config' ':!outer'"),
    *("git diff -- . ':!.env/x/..' ':!config' ':!outer'", "git -C config diff -- . ':!credentials.json/'"),
    *("git diff -- :config", "git log -p -- ::config", "git diff -- :.", "git -C outer diff -- :inner"),
    *(
        "git diff README.md :/",
        "git log -p README.md ':(top)'",
        "git diff README.md 'c?nfig'",
        "git diff src 'conf\\ig'",
    ),
    *("git show -s origin/note", "git show -s sym", "git diff sym -- src", "git grep tops origin/note -- '*.py'"),
    *("git stash show", "git stash show stash@{0}", "git stash show -u"),
    *("git diff blob src/a.py", "git diff blob -- src/a.py", "git diff blob ./src/a.py"),
    *("git grep tops blob -- '*.py'", "git grep -e tops note -- '*.py'", "git grep -n tops blob HEAD -- '*.py'"),
    *("git -C src grep tops ..", "git -C src grep tops -- ':/'", "git -C src grep tops HEAD -- ../config"),
    *("git -C src grep tops -- '*.py' ':(top)outer'", "git -C src grep --cached -e tops HEAD:config"),
    *("git -C src grep tops -- 'x*/../../config'", "git -C src grep tops -- ':(literal)..'"),
    *("git diff -- 'src/x*/../../config'", "git log -p -- src/../config", "git diff HEAD -- src/leads/../config"),
    *("git diff src/../config", "git diff -- . ':!src/../.env' ':!config' ':!outer'", "git diff -- *.py"),
    *("git for-each-ref --format='%(raw)'", "git for-each-ref --format '%(*raw)'", "git tag --format='%(raw)'"),
    *("git show $(git rev-parse HEAD)", "git cat-file -p HEAD", "git cat-file blob HEAD:.env", "git --no-pager diff"),
)
RUN = (
    *("git diff --stat", "git diff --name-only", "git diff --name-status HEAD~1", "git diff --numstat", "git diff -s"),
    *(
        "git diff --shortstat",
        "git diff --summary",
        "git diff --raw",
        "git diff --exit-code --quiet",
        "git diff --dirstat",
    ),
    *(
        "git diff -- src",
        "git diff src",
        "git diff HEAD -- src",
        "git diff HEAD~1 HEAD -- src README.md",
        "git diff -p src",
    ),
    *("git diff --cached -- src", "git diff HEAD~1 src/a.py", "git diff -- '*.py'", "git diff -- 'src/*.py' README.md"),
    *(
        "git diff -- . ':!.env' ':!config' ':!outer'",
        "git diff HEAD~1 -- . ':(exclude).env' ':^config/credentials.json' :^outer",
    ),
    *("git diff -U10 src/a.py", "git diff -w src/a.py", "git diff --stat -- .", "cd src && git diff -- a.py"),
    *("git -C src diff -- a.py", "git -C src diff a.py", "git diff HEAD:README.md HEAD~1:README.md"),
    *(
        "git log",
        "git log --oneline -5",
        "git log --stat",
        "git log --name-only --oneline",
        "git log -p -- src",
    ),
    *("git log -p -1 -- README.md", "git log --follow -p -- src/a.py", "git log -p src", "git log -L 1,1:src/a.py"),
    *(
        "git log -S foo --oneline",
        "git log --format='%h %an %s' -5",
        "git log --graph --all --oneline",
        "git log -p -- '*.py'",
    ),
    *("git log --since='2 weeks ago' --oneline", "git log --author=me", "git log --diff-filter=A --name-only"),
    *("git show --stat", "git show --name-only HEAD", "git show -s --format=%B HEAD", "git show HEAD:README.md"),
    *(
        "git show HEAD -- src",
        "git show HEAD~1 -- src/a.py",
        "git show 'HEAD^{commit}' -- src",
        "git show HEAD@{0} -- src",
    ),
    *("git diff HEAD:src HEAD~1:src", "git diff HEAD:src HEAD~1:src -- a.py", "git diff-tree -p HEAD:src HEAD~1:src"),
    *("git diff --stat HEAD:config", "git diff HEAD:./README.md :README.md", "git diff 'HEAD^{/x: y}' -- src"),
    *("git --literal-pathspecs diff -- src", "git diff -- . ':!.env' ':!config/' ':!outer/'", "git show HEAD:config"),
    *("git diff 'HEAD^{tree}' -- src", "git show -s 'outer^{tree}'", "git diff-tree -p main feature -- src"),
    *("git stash list", "git stash show --stat", "git reflog", "git diff-tree --no-commit-id --name-only -r HEAD"),
    *(
        f"git stash show --{option}"
        for option in ("stat", "numstat", "shortstat", "summary", "name-only", "name-status", "raw")
    ),
    *("git stash show -s", "git stash show --no-patch", "git stash show --stat -w", "git stash show stash@{0} --stat"),
    *("git show -s main", "git show --stat feature", "git show -s packed", "git show main~1 -- src", "git show -s @"),
    *("git show --stat HEAD~1..feature", "git show -s refs/heads/main", "git show -s feature@{0}", "git show -s stash"),
    *("git show --stat 'good^{commit}'", "git show good^0 -- src", "git show --stat src", "git show -n 1 --stat HEAD"),
    *(
        "git show -s origin/main",
        "git show -s origin/HEAD",
        "git show -s HEAD:",
        "git show -s 'HEAD^{/x}'",
        "git show -s :/x",
    ),
    *("git diff main feature -- src", "git diff main..HEAD -- src", "git diff -S foo HEAD -- src"),
    *("git grep src -- '*.py'", "git grep -n -A 3 src HEAD~1 main -- '*.py'", "git grep -e src HEAD -- '*.py'"),
    *("git -C src grep tops", "git -C src grep -n tops HEAD -- a.py"),
    *("git -C src grep tops -- ../src ':!x'", "git diff -- src/*.py"),
    *("git for-each-ref --format='%(refname) %(raw:size)'", "git tag --format='%(refname)'", "git log -s blob"),
    *("git diff-tree -p HEAD -- src", "git diff-index --name-only HEAD", "git diff-files", "git whatchanged"),
    *("git status", "git status -s", "git status --short --branch", "git status -uno", "git cat-file -t HEAD"),
    *(
        "git cat-file commit HEAD",
        "git cat-file -p HEAD:README.md",
        "git blame src/a.py",
        "git ls-files",
        "git shortlog",
    ),
)


def git(root: Path, *words: str) -> None:
    env = {"PATH": os.environ["PATH"], "HOME": str(root.parent), "GIT_CONFIG_NOSYSTEM": "1"}
    env |= {f"GIT_{role}_{value}": "x" for role in ("AUTHOR", "COMMITTER") for value in ("NAME", "EMAIL")}
    subprocess.run(["git", *words], cwd=root, check=True, env=env, capture_output=True)


def fill(root: Path, *, secrets: bool) -> Path:
    """Make a repository of two commits, a stash, and staged and unstaged changes; every file changes in each. The tags
    `blob`, `note` and `shadow` name the content of a file, and `shadow` is a branch too. So do the remote branch
    `origin/note` and the branch `sym`, which leads to a tag. `outer` is a folder's tree.
    """
    (root / "src").mkdir(parents=True)
    names = ["README.md", "src/a.py"]
    if secrets:
        (root / "config").mkdir()
        (root / "outer/inner").mkdir(parents=True)
        names += [".env", "outer/inner/id_rsa", "config/credentials.json"]
    git(root, "init", "-q", "-b", "main", ".")

    def change(number: int) -> None:
        for name in names:
            (root / name).write_text(f"{name} {number} {SECRET if name not in names[:2] else 'plain'}\n")

    for number in range(2):
        change(number)
        git(root, "add", ".")
        git(root, "commit", "-qm", f"x: y {number}")
    git(root, "tag", "blob", f"HEAD:{names[-1]}")
    git(root, "branch", "packed")
    git(root, "pack-refs", "--all")
    git(root, "tag", "-am", "x", "note", f"HEAD:{names[-1]}")
    git(root, "tag", "shadow", "blob")
    git(root, "tag", "good")
    git(root, "branch", "shadow")
    git(root, "branch", "feature")
    git(root, "update-ref", "refs/remotes/origin/main", "HEAD")
    git(root, "update-ref", "refs/remotes/origin/note", "blob")
    git(root, "symbolic-ref", "refs/heads/sym", "refs/tags/blob")
    git(root, "symbolic-ref", "refs/remotes/origin/HEAD", "refs/remotes/origin/main")
    if secrets:
        git(root, "tag", "outer", "HEAD:outer")
    change(2)
    git(root, "stash")
    change(3)
    git(root, "add", ".")
    change(4)
    return root


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return fill(tmp_path_factory.mktemp("content") / "workspace", secrets=True)


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return fill(tmp_path_factory.mktemp("plain") / "workspace", secrets=False)


def judged(command: str, root: Path, policy: AgentPolicy | None = None) -> Verdict:
    return judge_call(call_of(command), policy or AgentPolicy(), facts_of(command, root))


def call_of(command: str) -> ProposedCall:
    return ProposedCall("bash", {"command": command}, "unknown")


def facts_of(command: str, root: Path) -> CallFacts:
    judge = PathJudge(root, home=Path("/home/me"))
    start = CallFacts(root=judge.root, home=judge.home, git_quiet=git_is_quiet(Path(judge.root)))
    return find_facts(call_of(command), start, PARSER.parse, judge.look)


def printed(command: str, root: Path) -> str:
    env = {"PATH": os.environ["PATH"], "HOME": str(root.parent), "GIT_CONFIG_NOSYSTEM": "1", "GIT_PAGER": "cat"}
    done = subprocess.run(
        ["bash", "-c", command], cwd=root, env=env, capture_output=True, check=False, stdin=subprocess.DEVNULL
    )
    assert done.returncode in (0, 1), (command, done.stderr)
    return done.stdout.decode(errors="replace")


@pytest.mark.parametrize("command", ASKS)
def test_a_git_command_that_can_print_a_tracked_secret_asks(command: str, root: Path) -> None:
    assert judged(command, root).decision == "ask"


@pytest.mark.parametrize("command", RUN)
def test_a_git_command_that_prints_nothing_of_a_tracked_secret_runs_unasked(command: str, root: Path) -> None:
    assert judged(command, root).decision == "allow"
    assert SECRET not in printed(command, root)


@pytest.mark.parametrize("command", [each for each in ASKS if not each.startswith(("git format", "git fast"))])
def test_where_no_secret_is_tracked_reading_commands_do_not_ask(command: str, plain: Path) -> None:
    if ".env" not in command and "$(" not in command and "stdin" not in command and "-- .." not in command:
        (plain / ".env").write_text(SECRET)
        assert judged(command, plain).decision == "allow"
        assert (
            SECRET
            not in subprocess.run(
                ["bash", "-c", command], cwd=plain, capture_output=True, check=False, stdin=subprocess.DEVNULL
            ).stdout.decode()
        )


def test_the_question_names_the_secret_and_how_to_leave_it_out(root: Path) -> None:
    verdict = judged("git diff", root)
    assert verdict.rule == "O"
    assert "`git diff` can print .env" in verdict.why
    assert "':!.env'" in verdict.why


def test_every_mode_but_the_one_that_asks_nothing_asks_and_a_rule_lifts_it(root: Path) -> None:
    for mode in ("default", "acceptEdits", "sandboxed"):
        assert judged("git diff", root, AgentPolicy(mode=mode)).decision == "ask", mode
    assert judged("git diff", root, AgentPolicy(mode="plan")).decision == "deny"
    assert judged("git diff", root, AgentPolicy(mode="bypassPermissions")).decision == "allow"
    assert judged("git diff", root, AgentPolicy(allow=(parse_rule("Bash(git diff:*)"),))).decision == "allow"


def test_a_read_rule_holds_for_what_git_prints(root: Path) -> None:
    policy = AgentPolicy(mode="bypassPermissions", deny=(parse_rule("Read(config/**)"),))
    assert judged("git diff", root, policy).decision == "deny"
    assert judged("git log -p -- src", root, policy).decision == "allow"


def test_no_rule_is_proposed_for_printing_a_secret(root: Path, plain: Path) -> None:
    assert propose(call_of("git diff"), AgentPolicy(), facts_of("git diff", root)) == ()


def test_a_secret_that_is_tracked_above_the_workspace_counts(root: Path) -> None:
    assert judged("git diff", root / "src").decision == "ask"
    assert judged("git diff -- .", root / "src").decision == "allow"
    assert SECRET not in printed("git diff -- .", root / "src")


def test_two_folders_outside_a_repository_are_compared_with_the_secrets_in_them(tmp_path: Path) -> None:
    for name in ("a/.env", "b/x.py", "c/x.py"):
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).write_text(SECRET)
    assert judged("git diff a b", tmp_path).decision == "ask"
    assert judged("git diff b c", tmp_path).decision == "allow"
    for command in ("git diff [ab]", "git diff -- [ab] ", "git diff - a", "git diff b/../a c"):
        assert judged(command, tmp_path).decision == "ask", command


def test_a_search_of_untracked_files_asks_where_only_git_finds_its_folder(plain: Path) -> None:
    (plain / ".env").write_text(SECRET)
    for paths in ("':/'", "':(top)'", "'x*/../../'"):
        command = f"git -C src grep --untracked {SECRET} -- {paths}"
        assert SECRET in printed(command, plain)
        assert judged(command, plain).decision == "ask", command
    assert judged(f"git -C src grep --untracked {SECRET} -- ':!x'", plain).decision == "allow"


def test_a_path_that_git_shortens_and_the_kernel_follows_asks(root: Path) -> None:
    (root / "leads").symlink_to("outer/inner")
    try:
        assert SECRET in printed("git diff HEAD -- leads/../config", root)
        assert judged("git diff HEAD -- leads/../config", root).decision == "ask"
        assert judged("cd leads && git diff -- :/ ':!../.env' ':!../config' ':!../outer'", root).decision == "ask"
    finally:
        (root / "leads").unlink()


def test_a_password_in_the_configuration_asks(plain: Path) -> None:
    for key in ("sendemail.smtppass", "imap.pass", "http.proxy", "http.cookieFile", "hub.oauthtoken"):
        assert judged(f"git config {key}", plain).decision == "ask", key
    assert judged("git config user.name", plain).decision == "allow"


def test_an_object_by_its_id_may_be_the_content_of_any_file(root: Path) -> None:
    words = ["git", "rev-parse", "HEAD:.env", "HEAD"]
    blob, commit = subprocess.run(words, cwd=root, capture_output=True, check=True).stdout.decode().split()
    for command in (f"git show {blob}", f"git show {blob} -- src", f"git cat-file -p {blob[:8]}"):
        assert SECRET in printed(command, root)
        assert judged(command, root).decision == "ask"
    for option in ("-s", "--stat", "--numstat", "--raw", "--name-only", "--oneline --name-only HEAD"):
        assert SECRET in printed(f"git show {option} {blob}", root)
        assert judged(f"git show {option} {blob}", root).decision == "ask", option
    assert judged(f"git show {shlex.quote(commit)}^0 -- src", root).decision == "allow"


def test_the_question_about_a_name_that_may_be_a_file_says_how_to_name_a_commit(root: Path) -> None:
    assert "if it is a commit, write `good^0`" in judged("git show --stat good", root).why
    assert judged("git show --stat good^0", root).decision == "allow"


def test_a_name_means_a_commit_only_as_a_branch_or_the_stash_and_as_nothing_else(root: Path, tmp_path: Path) -> None:
    commits = ("main", "packed", "feature", "heads/main", "refs/heads/packed", "origin/main", "stash")
    assert [name for name in commits if not names_commit(root / "src", name)] == []
    others = (
        "sym",
        "heads/sym",
        "origin/note",
        "remotes/origin/note",
        "blob",
        "note",
        "good",
        "shadow",
        "gone",
        "tags/blob",
        "config",
        "",
        "..",
        "heads/../tags/blob",
        "f" * 40,
    )
    assert [name for name in others if names_commit(root, name)] == []
    assert not names_commit(tmp_path, "main")

"""Addresses without secrets, names that git accepts, and the words about what a host lost."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from callboard.core.checkpoints.address import check_base, parse_remote, without_credentials, workspace_name
from callboard.core.checkpoints.rules import (
    CheckpointCommit,
    HostLosses,
    branch_name,
    commit_message,
    is_due,
    local_ref,
    loss_reminder,
    push_end,
    read_commit,
    relocate_path,
    results_in_files,
    session_branches,
    short_list,
    work_after,
)
from callboard.core.context.stages.results import persisted_mark
from callboard.types import events as ev
from callboard.types.checkpoints import CheckpointPolicy
from callboard.types.records import ToolCall


@pytest.mark.parametrize(
    ("written", "identity"),
    [
        ("https://github.com/acme/app.git", "github.com/acme/app"),
        ("https://GitHub.com:443/acme/app/", "github.com/acme/app"),
        ("git@github.com:acme/app.git", "github.com/acme/app"),
        ("ssh://git@github.com/acme/app", "github.com/acme/app"),
        ("ssh://git@example.com:2222/acme/app", "example.com:2222/acme/app"),
        ("file:///srv/git/app.git", "file:/srv/git/app"),
        ("/srv/git/app.git/", "file:/srv/git/app"),
        ("https://dev.azure.com/acme/My%20Project/_git/app", "dev.azure.com/acme/My%20Project/_git/app"),
    ],
)
def test_all_ways_to_write_an_address_name_one_workspace(written: str, identity: str) -> None:
    remote = parse_remote(written)
    assert (remote.url, remote.identity) == (written, identity)
    assert workspace_name(remote, "main") == f"git:{identity}#main"
    assert workspace_name(remote, "") == f"git:{identity}"


SECRETS = [
    "https://alice:hunter2@example.com/a/b",
    "https://hunter2@example.com/a/b",
    "https://alice:hunter2@evil@example.com/a/b",
    "ssh://alice:hunter2@example.com/a/b",
    "alice:hunter2@example.com:a/b",
    "https://example.com/a/b?token=hunter2",
    "https://example.com/a/b#hunter2",
    "http://alice:hunter2@example.com/a/b",
    "https://alice:hunter2@example.com:port/a/b",
    "https://alice:hunter2@[example.com/a/b",
]


@pytest.mark.parametrize("written", SECRETS)
def test_a_password_is_refused_and_never_repeated(written: str) -> None:
    with pytest.raises(ValueError, match=r"remove|reached|no address") as refused:
        parse_remote(written)
    assert "hunter2" not in str(refused.value)
    assert refused.value.__cause__ is None, "an error of a library could repeat the address"


@pytest.mark.parametrize(
    "written",
    [
        "",
        "-oProxyCommand=touch",
        "ssh://-oProxyCommand=x/a",
        "-x@host:a",
        "ext::sh -c touch",
        "git://example.com/a",
        "relative/path",
        "host:",
        "https:///a",
        "file://host/a",
        "https://example.com/",
        "https://example.com/a b",
        "a\nb:c",
        "fd::17",
    ],
)
def test_what_is_no_address_that_git_may_get_is_refused(written: str) -> None:
    with pytest.raises(ValueError, match="git remote"):
        parse_remote(written)


@given(st.text(max_size=60))
def test_an_address_that_is_taken_has_no_user_but_that_of_ssh(text: str) -> None:
    try:
        remote = parse_remote(text)
    except ValueError:
        return
    assert not remote.url.startswith("-")
    if remote.url.lower().startswith("https://"):
        assert "@" not in remote.url[8:].partition("/")[0]


@pytest.mark.parametrize("base", ["main", "release/1.0", "a-b_c.d", "größe"])
def test_a_base_is_a_branch(base: str) -> None:
    assert check_base(base) == base


@pytest.mark.parametrize("base", ["-x", "a b", "a..b", "a~1", "a:b", "x.lock", "/a", "a/", "a//b", "@", "a@{1}", ".a"])
def test_what_git_does_not_take_for_a_branch_is_no_base(base: str) -> None:
    with pytest.raises(ValueError, match="branch"):
        check_base(base)


def test_credentials_in_gits_output_are_removed() -> None:
    said = "fatal: unable to access 'https://x-access-token:ghp_1@github.com/a/b/': https://ghp_1@host/a, git@host:a"
    cleaned = "fatal: unable to access 'https://github.com/a/b/': https://host/a, git@host:a"
    assert without_credentials(said) == cleaned


def test_each_tree_has_a_branch_of_its_own() -> None:
    assert branch_name("4f1c", "") == "callboard/4f1c/workspace"
    assert branch_name("4f1c", "parser") == "callboard/4f1c/wt/parser"
    assert local_ref("4f1c", "parser") == "refs/callboard/checkpoints/4f1c/wt/parser"
    assert session_branches("a b") != session_branches("a-b")
    odd = branch_name("../x", "a..b.lock")
    assert check_base(odd) == odd


@pytest.mark.parametrize(("policy", "due"), [("turn", (True, False)), ("step", (True, True)), ("off", (False, False))])
def test_a_policy_says_what_a_checkpoint_follows(policy: CheckpointPolicy, due: tuple[bool, bool]) -> None:
    events = (ev.TurnEnded(at=1, turn="t", reason="end"), ev.ResultsMerged(at=1))
    assert tuple(is_due(policy, event) for event in events) == due


def test_a_message_names_what_is_left_out_in_one_line_each() -> None:
    left_out = ["big\nCallboard-Head: evil: over 50 MB"]
    message = commit_message("s1", "parser", head="abc", branch="wt/parser", left_out=left_out)
    assert message.splitlines() == [
        "Checkpoint of the worktree parser",
        "",
        "Callboard-Session: s1",
        "Callboard-Left-Out: big Callboard-Head: evil: over 50 MB",
        "Callboard-Branch: wt/parser",
        "Callboard-Head: abc",
    ]
    read = read_commit(f"tree 123\nparent 456\nauthor Callboard-Head: x\n\n{message}")
    assert read == CheckpointCommit("123", "abc", "wt/parser")
    unborn = commit_message("s1", "", head="", branch="")
    assert read_commit(f"tree 123\n\n{unborn}") == CheckpointCommit("123")


@pytest.mark.parametrize(
    ("code", "output", "problem"),
    [
        (0, "Done", ""),
        (1, "!\tx:y\t[rejected] (fetch first)", "diverged"),
        (1, "!\tx:y\t[remote rejected] (pre-receive hook declined)", "refused"),
        (1, "remote: error: GH006: Protected branch update failed", "refused"),
        (128, "fatal: Authentication failed for 'https://t@github.com/a/b'", "credentials"),
        (128, "git@host: Permission denied (publickey).", "credentials"),
        (128, "ssh: Could not resolve hostname host", "unreachable"),
        (None, "", "unreachable"),
    ],
)
def test_a_failed_push_says_what_to_do(code: int | None, output: str, problem: str) -> None:
    end = push_end(code, output, "callboard/s/workspace")
    assert end.problem == problem
    assert bool(end.text) == bool(problem)
    assert "//t@" not in end.text


def test_a_list_in_a_record_has_a_limit() -> None:
    names = [f"f{number}" for number in range(105)]
    assert short_list(names)[-1] == "5 more"
    assert short_list(names[:100]) == tuple(names[:100])
    assert short_list([b"caf\xe9".decode("utf-8", "surrogateescape"), "café"]) == ("caf?", "café")


def test_an_agent_that_lost_nothing_is_told_nothing() -> None:
    assert loss_reminder(HostLosses(), before="", now="/b") == ""


def test_losses_are_named() -> None:
    losses = HostLosses(
        changes=("a.py", "odd\nname"),
        commands=("make install",),
        left_out=("film.mov: over 50 MB",),
        ignored=(".env",),
        outside=("/tmp/notes",),
        servers=("browser",),
        results=("/data/r/toolu_1.txt",),
    )
    text = loss_reminder(losses, before="/home/a/app", now="/data/app")
    assert text.splitlines() == [
        "The runtime stopped on another host, and this session continues here from its last checkpoint.",
        "Your workspace is /data/app now. It was /home/a/app: paths that begin with that are beneath /data/app now.",
        "- Changes after the last checkpoint, which are not here: a.py, 'odd\\nname'",
        "- Commands after the last checkpoint, not run again; what they changed in files is not here, and what else "
        "they did is unknown: make install",
        "- Files that checkpoints leave out: film.mov: over 50 MB",
        "- Files that git ignores, which are not here: .env",
        "- Files outside the workspace that you changed, which are not here: /tmp/notes",
        "- Files with whole results, which are not here: /data/r/toolu_1.txt",
        "- MCP servers that were processes of that host, and begin anew here: browser",
        "Look at what is here before you do any of it again.",
    ]


def test_work_after_a_checkpoint_is_read_from_the_journal() -> None:
    calls = {"c1": "make", "c2": "sleep 9", "c3": "make"}
    replied = ev.ModelReplied(
        at=1,
        ordinal=1,
        model="m",
        stop_reason="tool_use",
        blocks=(),
        calls=tuple(
            ToolCall(id=name, use_id=name, name="bash", input={"command": text}) for name, text in calls.items()
        ),
    )

    def finished(call: str, at: float, **data: object) -> ev.ToolFinished:
        return ev.ToolFinished(at=at, call=call, content=(), data=data)

    events = [
        replied,
        finished("w0", 1, path="/w/early", before="", after="1"),
        finished("w1", 3, path="/w/a", before="", after="1"),
        finished("w2", 3, path="/w/same", before="1", after="1"),
        finished("c1", 3, exit_code=0),
        finished("c2", 3, id="bg_1", output="/data/bg_1.out"),
        finished("c3", 3, exit_code=1),
    ]
    assert work_after(events, 2) == (("/w/a",), ("make",))


def test_files_with_results_are_found_in_a_conversation() -> None:
    text = json.dumps({"text": f"{persisted_mark('/data/r/a b.txt', 'x')} and {persisted_mark('/data/r/2.txt', 'y')}"})
    assert results_in_files([text, text]) == ("/data/r/a b.txt", "/data/r/2.txt")
    assert results_in_files(["Full output: /x"]) == ()


def test_a_path_of_another_host_is_found_in_the_innermost_folder() -> None:
    folders = {"/a/app": "/b/app", "/a/app/wt": "/b/trees"}
    assert relocate_path("/a/app/x/y", folders) == "/b/app/x/y"
    assert relocate_path("/a/app/wt/x", folders) == "/b/trees/x"
    assert relocate_path("/a/app", folders) == "/b/app"
    assert relocate_path("/a/application/x", folders) == ""

"""The file of trust decisions: concurrent writers, damage, file modes, and retention."""

from __future__ import annotations

import json
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from callboard.adapters.extensions.trust_store import KEPT, TrustFile
from callboard.core.trust.claims import Claim, TrustDecision
from callboard.types.errors import WorkspaceUnusable

CLAIM = Claim("a\udc80", "hook", "x\x1b", 3)


def decision(workspace: str, digest: str) -> TrustDecision:
    return TrustDecision(workspace, digest, 1.5, (CLAIM,), {"a": digest})


def test_a_decision_is_for_one_content_of_one_folder_and_only_the_person_reads_it(tmp_path: Path) -> None:
    file = TrustFile(tmp_path / "config")
    assert file.read().decisions == ()
    file.record(decision("/w", "one"))
    kept = file.read()
    assert kept.trusts("/w", "one")
    assert not kept.trusts("/w", "two")
    assert not kept.trusts("/v", "one")
    assert kept.of("/w") == (decision("/w", "one"),)
    assert stat.S_IMODE(file.path.stat().st_mode) == 0o600
    assert stat.S_IMODE(file.path.parent.stat().st_mode) == 0o700


def test_some_contents_of_one_folder_stay_trusted_until_all_are_revoked(tmp_path: Path) -> None:
    file = TrustFile(tmp_path)
    file.record(decision("/v", "other"))
    for number in range(KEPT + 3):
        file.record(decision("/w", str(number)))
    file.record(decision("/w", "5"))
    assert [one.digest for one in file.read().of("/w")] == ["3", "4", "6", "7", "8", "9", "10", "5"]
    assert file.read().of("/w")[-1].claims == (CLAIM,)
    assert file.revoke("/w") == KEPT
    assert file.read().of("/w") == ()
    assert file.read().trusts("/v", "other")
    assert file.revoke("/w") == 0


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        "null",
        '{"version": 2, "decisions": []}',
        '{"version": 1, "decisions": [{}]}',
        "\xff",
        '{"version": 1}',
    ],
)
def test_a_damaged_file_trusts_nothing_and_is_set_aside_by_the_next_decision(text: str, tmp_path: Path) -> None:
    file = TrustFile(tmp_path)
    file.path.write_bytes(text.encode("latin-1"))
    file.path.chmod(0o600)
    assert file.read().decisions == ()
    assert "is damaged" in file.read().damage
    file.record(decision("/w", "one"))
    assert file.read().trusts("/w", "one")
    assert (tmp_path / "trust.json.damaged-1").read_bytes() == text.encode("latin-1")


def test_a_file_that_others_could_have_written_trusts_nothing(tmp_path: Path) -> None:
    file = TrustFile(tmp_path)
    file.record(decision("/w", "one"))
    file.path.chmod(0o666)
    assert "not a file that only you can write" in file.read().damage
    assert not file.read().trusts("/w", "one")


def test_a_folder_in_its_place_is_told(tmp_path: Path) -> None:
    file = TrustFile(tmp_path / "file" / "config")
    (tmp_path / "file").write_text("")
    with pytest.raises(WorkspaceUnusable, match="cannot be kept"):
        file.record(decision("/w", "one"))


WRITER = """
import sys
from pathlib import Path
from callboard.adapters.extensions.trust_store import TrustFile
from callboard.core.trust.claims import TrustDecision
for number in range(20):
    TrustFile(Path(sys.argv[1])).record(TrustDecision(f"/{sys.argv[2]}-{number}", "d", 1.0))
"""


def test_processes_that_decide_at_once_lose_no_decision(tmp_path: Path) -> None:
    writers = [subprocess.Popen([sys.executable, "-c", WRITER, str(tmp_path), str(name)]) for name in range(3)]
    assert [writer.wait(180) for writer in writers] == [0, 0, 0]
    wanted = {f"/{name}-{number}" for name in range(3) for number in range(20)}
    assert {one.workspace for one in TrustFile(tmp_path).read().decisions} == wanted
    assert json.loads((tmp_path / "trust.json").read_text())["version"] == 1

"""Skills and slash commands in whole sessions: real files, real shell, the rehearsal model over HTTP."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import pytest

from callboard.app import End, Options, open_session
from callboard.ports.model import Delta
from callboard.words.events import EnvelopesDelivered, EnvelopesDropped, Event, SkillLoaded
from callboard.words.values import Envelope

pytestmark = pytest.mark.anyio

DONE = """
agents:
  "*":
    - {reply: Done., repeat: forever}
"""


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@dataclass
class Seen:
    """An observer that keeps what was recorded and what was noticed."""

    events: list[tuple[str, Event]] = field(default_factory=list[tuple[str, Event]])
    notices: list[str] = field(default_factory=list[str])

    def on_event(self, agent: str, seq: int, event: Event) -> None:
        self.events.append((agent, event))

    def on_delta(self, agent: str, delta: Delta) -> None:
        if delta.kind == "notice":
            self.notices.append(delta.text)

    def on_mail(self, envelope: Envelope) -> None:
        pass

    @property
    def heard(self) -> list[str]:
        """The texts that entered the lead's conversation as mail."""
        delivered = [e for agent, e in self.events if agent == "lead" and isinstance(e, EnvelopesDelivered)]
        return [str(block.data["text"]) for one in delivered for block in one.blocks]

    @property
    def dropped(self) -> list[str]:
        return [e.why for _, e in self.events if isinstance(e, EnvelopesDropped)]


class Place:
    """A workspace of its own, with a person's folders beside it."""

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        for kind in ("STATE", "DATA", "CONFIG"):
            monkeypatch.setenv(f"XDG_{kind}_HOME", str(root / kind.lower()))
        monkeypatch.setenv("HOME", str(root / "home"))
        self.root, self.workspace = root, root / "work"
        self.workspace.mkdir()
        self.scenario(DONE)

    def scenario(self, text: str) -> None:
        (self.root / "scenario.yaml").write_text(text)

    def skill(self, name: str, text: str, where: str = "home/.claude/skills") -> Path:
        folder = self.root / where / name
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "SKILL.md").write_text(text)
        return folder

    def options(self, **more: object) -> Options:
        return Options(self.workspace, model=f"rehearsal:{self.root / 'scenario.yaml'}", **more)  # pyright: ignore[reportArgumentType]  any of them

    async def run(self, *words: str, **more: object) -> tuple[Seen, End]:
        seen = Seen()
        async with open_session(self.options(**more), observers=[seen]) as session:
            for text in words:
                await session.say(text)
                await session.finished()
            return seen, await session.finished()


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    return Place(tmp_path, monkeypatch)


async def test_a_slash_command_becomes_the_skills_text_behind_the_short_form(place: Place) -> None:
    folder = place.skill(
        "fix",
        "---\ndescription: d\narguments: [issue, branch]\n---\nFix $issue on $branch: $ARGUMENTS in ${CLAUDE_SKILL_DIR}",
    )
    seen, end = await place.run('/fix 42 "two words"')
    assert end.exit_code == 0
    short, text = seen.heard
    assert short == '/fix 42 "two words"'
    assert text.startswith(f"Skill fix, folder {folder}\n")
    assert text.endswith(f'\n\nFix 42 on two words: 42 "two words" in {folder}')
    (loaded,) = [e for _, e in seen.events if isinstance(e, SkillLoaded)]
    assert loaded.name == "fix"


async def test_commands_in_a_skill_run_first_and_a_refused_one_ends_it(place: Place) -> None:
    (place.workspace / "notes.txt").write_text("here it is\n")
    place.skill("look", "---\ndescription: d\n---\n- say: !`cat notes.txt`\n")
    place.skill("bad", "---\ndescription: d\n---\n!`touch made`\n")
    place.skill("fails", "---\ndescription: d\n---\n!`cat missing.txt`\n")
    place.skill("nothing", "---\ndescription: d\n---\nfound: !`grep -c xyz notes.txt`.\n")
    seen, _ = await place.run("/look", "/bad now", "/fails", "/nothing")
    assert seen.heard[0] == "/look", seen.dropped
    assert "- say: here it is" in seen.heard[1]
    assert seen.heard[2] == "/nothing"
    assert "found: 0." in seen.heard[3]
    assert [why.partition("`")[0] for why in seen.dropped] == ["/bad: its command ", "/fails: its command "]
    assert "it ended with 1" in seen.dropped[1]
    assert not (place.workspace / "made").exists()
    assert seen.notices == seen.dropped

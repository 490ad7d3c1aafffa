"""Skills and slash commands in whole sessions: real files, real shell, the rehearsal model over HTTP."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import anyio
import pytest

from callboard.core.messaging.envelopes import envelope_write
from callboard.ports.model import Delta
from callboard.sessions.open import open_session
from callboard.sessions.options import (
    IdentityOptions,
    ModelOptions,
    SessionOptions,
    WorkspaceOptions,
)
from callboard.sessions.result import RunEnd
from callboard.types.events import (
    AgentStarted,
    CallJudged,
    ContextEdited,
    EnvelopesDelivered,
    EnvelopesDropped,
    Event,
    InjectionQueued,
    ModelCalled,
    PromptSet,
    SkillLoaded,
)
from callboard.types.records import Envelope

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
    some_dropped: anyio.Event = field(default_factory=anyio.Event)

    def on_event(self, agent: str, seq: int, event: Event) -> None:
        self.events.append((agent, event))
        if isinstance(event, EnvelopesDropped):
            self.some_dropped.set()

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

    def options(self, *, resume: bool = False, trust: bool = False, record: Path | None = None) -> SessionOptions:
        return SessionOptions(
            WorkspaceOptions(self.workspace, trust=trust),
            identity=IdentityOptions(resume=resume),
            model=ModelOptions(f"rehearsal:{self.root / 'scenario.yaml'}", record=record),
        )

    async def run(self, *words: str, trust: bool = False, record: Path | None = None) -> tuple[Seen, RunEnd]:
        seen = Seen()
        async with open_session(self.options(trust=trust, record=record), observers=[seen]) as session:
            for text in words:
                await session.say(text)
                await session.wait_finished()
            return seen, await session.wait_finished()


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    return Place(tmp_path, monkeypatch)


async def test_a_slash_command_becomes_the_skills_text_behind_the_short_form(place: Place) -> None:
    folder = place.skill(
        "fix",
        "---\ndescription: d\narguments: issue branch\n---\nFix $issue on $branch: $ARGUMENTS in ${CLAUDE_SKILL_DIR}",
    )
    seen, end = await place.run('/fix 42 "two words"')
    assert end.exit_code == 0
    short, text = seen.heard
    assert short == '/fix 42 "two words"'
    assert text.startswith(f"Skill fix, folder {folder}\n")
    assert text.endswith(f'\n\nFix 42 on two words: 42 "two words" in {folder}')
    (loaded,) = [e for _, e in seen.events if isinstance(e, SkillLoaded)]
    assert loaded.name == "fix"


@pytest.mark.slow
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


TOUCHES = """
agents:
  lead:
    - {reply: [{tool_use: {name: bash, input: {command: touch made}}}]}
    - {reply: Done., repeat: forever}
"""


async def test_allowed_tools_lift_a_question_in_their_turn_and_no_longer(place: Place) -> None:
    place.scenario(TOUCHES.replace("forever}", "1}") + TOUCHES.split("lead:\n")[1])
    place.skill("make", "---\ndescription: d\nallowed-tools: Bash(touch *)\n---\nMake it.\n")
    seen, end = await place.run("/make", "Again, without it.")
    made = [e for _, e in seen.events if isinstance(e, CallJudged)]
    assert [one.verdict for one in made] == ["allow"]
    assert (place.workspace / "made").exists()
    assert end.exit_code == 4, "the second turn asks, and nobody is there"


@pytest.mark.slow
async def test_disallowed_tools_and_deny_rules_bind_whatever_is_allowed(place: Place) -> None:
    place.scenario(TOUCHES)
    place.skill("no", "---\ndescription: d\nallowed-tools: Bash\ndisallowed-tools: Bash(touch *)\n---\nMake it.\n")
    seen, end = await place.run("/no")
    (one,) = [e for _, e in seen.events if isinstance(e, CallJudged)]
    assert (one.verdict, one.by, end.exit_code) == ("deny", "rule Bash(touch *)", 0)
    place.scenario(TOUCHES)
    (place.root / "config/callboard").mkdir(parents=True)
    (place.root / "config/callboard/settings.yaml").write_text("permission: {deny: ['Bash(touch *)']}\n")
    place.skill("yes", "---\ndescription: d\nallowed-tools: Bash\n---\nMake it.\n")
    seen, _ = await place.run("/yes")
    assert [e.verdict for _, e in seen.events if isinstance(e, CallJudged)] == ["deny"]
    assert not (place.workspace / "made").exists()


async def test_several_stand_at_the_start_and_each_has_the_arguments(place: Place) -> None:
    place.skill("one", "---\ndescription: d\n---\nFirst $0.\n")
    place.skill("two", "---\ndescription: d\n---\nSecond.\n")
    seen, _ = await place.run("/one /two /etc/hosts")
    assert [text.splitlines()[-1] for text in seen.heard] == [
        "/one /two /etc/hosts",
        "First /etc/hosts.",
        "ARGUMENTS: /etc/hosts",
    ]


async def test_what_is_no_command_is_said_as_it_stands(place: Place) -> None:
    seen, _ = await place.run("/etc/hosts is wrong", "/tmp is full", "\\/x")
    assert seen.heard == ["/etc/hosts is wrong", "/tmp is full", "\\/x"]


async def test_a_command_with_the_name_of_a_folder_at_the_root_is_run(place: Place) -> None:
    place.skill("run", "---\ndescription: d\n---\nRun $ARGUMENTS.\n")
    seen, _ = await place.run("/run the tests", "/tmp is full")
    assert [text.splitlines()[-1] for text in seen.heard] == ["/run the tests", "Run the tests.", "/tmp is full"]


async def test_an_unknown_command_never_reaches_the_model(place: Place) -> None:
    place.skill("review", "---\ndescription: d\n---\nx\n")
    place.skill("hidden", "---\ndescription: d\nuser-invocable: false\n---\nx\n")
    seen, end = await place.run("/reveiw it", "/hidden")
    assert seen.heard == []
    assert not [event for _, event in seen.events if isinstance(event, ModelCalled)]
    assert seen.dropped[0] == (
        "there is no command /reveiw. Did you mean /review? "
        "To send it to the model unchanged, begin with a backslash: \\/reveiw"
    )
    assert seen.dropped[1].startswith("there is no command /hidden.")
    assert end.exit_code == 1


@pytest.mark.slow
async def test_a_nested_command_goes_by_its_folders_and_by_its_name_where_that_is_clear(place: Place) -> None:
    commands = place.root / "home/.claude/commands"
    for path in ("git/commit", "web/ui/deploy", "api/deploy", "fix/fix"):
        (commands / path).parent.mkdir(parents=True, exist_ok=True)
        (commands / f"{path}.md").write_text(f"This is {path}.\n")
    seen = Seen()
    async with open_session(place.options(), observers=[seen]) as session:
        names = {command.name: command.aliases for command in session.commands() if command.kind == "command"}
        for typed in ("/git:commit", "/commit", "/web:ui:deploy", "/ui:deploy", "/api:deploy", "/deploy"):
            await session.say(typed)
            await session.wait_finished()
    assert names == {
        "git:commit": ("commit",),
        "web:ui:deploy": ("ui:deploy",),
        "api:deploy": (),
        "fix:fix": ("fix",),
    }
    said = [text.partition("This is ")[2].partition(".")[0] for text in seen.heard if "This is " in text]
    assert said == ["git/commit", "git/commit", "web/ui/deploy", "web/ui/deploy", "api/deploy"]
    assert "Did you mean /api:deploy or /web:ui:deploy?" in seen.dropped[0]


FORKS = r"""
agents:
  lead:
    - {when: {contains: ['It answered', Seven files]}, reply: Seven., repeat: forever}
    - {when: {contains: Use it}, reply: [{tool_use: {name: load_skill, input: {name: count, arguments: src}}}]}
    - {when: {result_of: load_skill, contains: Seven files}, reply: Loaded., repeat: forever}
  "explore-*":
    - {when: {contains: Count the files of src}, reply: Seven files., repeat: forever}
"""


@pytest.mark.slow
async def test_a_skill_with_context_fork_runs_as_a_subagent_for_a_person_and_for_a_model(place: Place) -> None:
    place.scenario(FORKS)
    place.skill("count", "---\ndescription: d\ncontext: fork\nagent: Explore\n---\nCount the files of $ARGUMENTS\n")
    seen, end = await place.run("/count src")
    assert (end.exit_code, end.text) == (0, "Seven."), seen.dropped
    assert len([name for name, e in seen.events if isinstance(e, AgentStarted) and name.startswith("explore-")]) == 1
    assert "Count the files" not in "".join(seen.heard), "the lead hears the answer, not the text"
    _, end = await place.run("Use it")
    assert (end.exit_code, end.text) == (0, "Loaded.")


@pytest.mark.slow
async def test_a_skill_for_persons_alone_is_in_no_catalogue_and_no_schedule(place: Place) -> None:
    place.scenario("""
agents:
  lead:
    - {reply: [{tool_use: {name: load_skill, input: {name: deploy}}}]}
    - {when: {result_of: load_skill, contains: is for a person to start}, reply: It refused., repeat: forever}
""")
    place.skill("deploy", "---\ndescription: Ships it all\ndisable-model-invocation: true\n---\nShip.\n")
    _, end = await place.run("Ship it.")
    assert (end.exit_code, end.text) == (0, "It refused.")
    seen = Seen()
    async with open_session(place.options(), observers=[seen]) as session:
        fired = Envelope(
            id="schedule:cron_x:1",
            sender="schedule",
            recipient="lead",
            type="scheduled",
            content="/deploy",
            cause="schedule",
        )
        await session._store.commit(envelope_write(session.id, fired))  # as a fire does
        await seen.some_dropped.wait()
        await session.wait_finished()
    assert seen.dropped == ["/deploy: it is for a person to start (disable-model-invocation), not for a schedule"]


async def test_a_resume_repeats_nothing_of_what_was_expanded(place: Place) -> None:
    folder = place.skill("fix", "---\ndescription: d\n---\nAs it was.\n")
    seen, _ = await place.run("/fix")
    (folder / "SKILL.md").write_text("---\ndescription: d\n---\nAs it is.\n")
    again = Seen()
    async with open_session(place.options(resume=True), observers=[again]) as session:
        await session.wait_finished()
        texts = [str(b.data["text"]) for m in session.state("lead").context.conversation.messages for b in m.blocks]
    assert again.heard == []
    assert [text for text in texts if "As it was." in text] == [seen.heard[1]]


async def test_a_command_file_is_a_command_and_a_skill_of_its_name_wins(place: Place) -> None:
    commands = place.root / "home/.claude/commands"
    (commands / "git").mkdir(parents=True)
    (commands / "git/commit.md").write_text("---\nargument-hint: [message]\n---\nCommit with $ARGUMENTS\n")
    (commands / "fix.md").write_text("The command.\n")
    place.skill("fix", "---\ndescription: d\n---\nThe skill.\n")
    seen = Seen()
    async with open_session(place.options(), observers=[seen]) as session:
        found = {one.name: (one.kind, one.hint) for one in session.commands()}
        await session.say("/git:commit it all")
        await session.say("/commit once more")
        await session.say("/fix")
        await session.wait_finished()
    assert found["git:commit"] == ("command", "[message]")
    assert found["fix"] == ("skill", "")
    assert "Commit with it all" in seen.heard[1]
    assert "Commit with once more" in "".join(seen.heard), "no other command has that name"
    assert "The skill." in "".join(seen.heard)
    assert "The command." not in "".join(seen.heard)


@pytest.mark.slow
async def test_a_workspace_that_nobody_trusts_brings_no_skill_and_no_command(place: Place) -> None:
    place.skill("evil", "---\ndescription: d\nallowed-tools: Bash\n---\n!`touch made`\n", "work/.claude/skills")
    (place.workspace / ".claude/commands").mkdir(parents=True)
    (place.workspace / ".claude/commands/worse.md").write_text("!`touch made`\n")
    seen, _ = await place.run("/evil", "/worse")
    assert seen.heard == []
    assert [why.partition(",")[0] for why in seen.dropped] == [
        "/evil is a command of this workspace",
        "/worse is a command of this workspace",
    ]
    assert all("`callboard trust`" in why for why in seen.dropped)
    seen, _ = await place.run("/other")
    assert seen.dropped[0].startswith("there is no command /other.")
    seen, _ = await place.run("/evil", "/worse", trust=True)
    assert len(seen.heard) == 2, "trusted, its own grant lets its command run"
    assert "/worse: its command `touch made` did not run" in seen.dropped[0]
    assert (place.workspace / "made").exists()


async def test_switched_off_commands_are_not_run_and_say_so(place: Place) -> None:
    (place.root / "config/callboard").mkdir(parents=True)
    (place.root / "config/callboard/settings.yaml").write_text(
        "skills: {commands: false, overrides: {gone: 'off', mine: user-invocable-only, short: name-only}}\n"
    )
    for name in ("gone", "mine", "short"):
        place.skill(name, f"---\ndescription: About {name}\n---\n!`cat x`\n")
    seen = Seen()
    async with open_session(place.options(), observers=[seen]) as session:
        assert not {"gone"} & {one.name for one in session.commands()}
        await session.say("/mine")
        await session.wait_finished()
        catalogue = [one for _, one in seen.events if isinstance(one, PromptSet)]
    assert "[not run: the setting skills.commands switches them off]" in seen.heard[1]
    assert catalogue


@pytest.mark.slow
async def test_a_skill_that_a_summary_took_away_comes_back(place: Place) -> None:
    place.scenario(DONE.replace("Done.", "Much to say. " * 600))
    place.skill("fix", "---\ndescription: d\n---\nNever push to main.\n")
    seen = Seen()
    async with open_session(place.options(), observers=[seen]) as session:
        await session.say("/fix")
        await session.wait_finished()
        for words in ("One.", "Two.", "Three.", "Four."):
            await session.say(words)
            await session.wait_finished()
        await session.command("compact")
        await session.wait_finished()
        await session.say("And now?")
        await session.wait_finished()
    back = [e.injection for _, e in seen.events if isinstance(e, InjectionQueued) and e.injection.source == "skill"]
    assert [e for _, e in seen.events if isinstance(e, ContextEdited) and e.edits], "it was summarised"
    assert len(back) == 1
    assert "Never push to main." in back[0].text


@pytest.mark.slow
async def test_a_replay_hears_what_a_skills_commands_printed_then(place: Place) -> None:
    place.skill("look", "---\ndescription: d\n---\n!`cat notes.txt`\n")
    (place.workspace / "notes.txt").write_text("as it was")
    cassette = place.root / "session.jsonl"
    await place.run("/look", record=cassette)
    (place.workspace / "notes.txt").write_text("as it is")
    seen = Seen()
    async with open_session(
        SessionOptions(WorkspaceOptions(place.workspace), model=ModelOptions(f"cassette:{cassette}")), observers=[seen]
    ) as session:
        await session.say("/look")
        end = await session.wait_finished()
    assert (end.exit_code, end.why) == (0, "")
    assert seen.heard[1].endswith("as it was")

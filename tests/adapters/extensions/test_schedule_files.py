"""Schedule files are read where a person trusts them, report errors with file, line, and field, and update the rows."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import anyio
import pytest

from callboard.adapters.extensions.schedules import ScheduleFiles, read_schedule
from callboard.adapters.extensions.trust import read_claims
from callboard.adapters.storage.memory import MemoryStore
from callboard.adapters.system.folder_watch import WatchFactory
from callboard.config.trust import keep
from callboard.core.keys import rows_prefix, schedule_key
from callboard.ports.store import Put
from callboard.sessions.inspect.schedule_files import faults_of, files_now, keep_file_schedules, sync_files
from callboard.sessions.places import WorkspacePaths
from callboard.types.errors import SettingsError
from callboard.types.schedules import Schedule

pytestmark = pytest.mark.anyio
LOOK = '---\ncron: "0 9 * * 1-5"\ntimezone: Europe/Berlin\n---\n\nLook at the roof.\n'


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@dataclass
class World:
    """A workspace with schedule files, a person's folder, and a store."""

    places: WorkspacePaths
    store: MemoryStore
    now: float = 1_000.0

    def write(self, name: str, text: str = LOOK) -> Path:
        path = self.places.workspace / ".callboard/schedules" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return path

    def write_personal(self, name: str, text: str = LOOK) -> Path:
        path = self.places.config / "schedules" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return path

    def trust(self) -> None:
        keep(read_claims(self.places.workspace), self.places.config)

    def read_files(self, *, flag: bool = True) -> ScheduleFiles:
        return files_now(self.places, flag=flag)

    async def sync(self, *, flag: bool = True) -> tuple[str, ...]:
        self.now += 1_000
        return (await sync_files(self.store, "s1", self.read_files(flag=flag), self.now)).faults

    async def rows(self) -> dict[str, Schedule]:
        rows = await self.store.keys(f"{rows_prefix('s1')}schedule/")
        found = [Schedule.model_validate_json(row.value or b"") for row in rows]
        return {one.name: one for one in found}

    async def change(self, name: str, **fields: object) -> None:
        row = (await self.rows())[name]
        await self.store.commit(Put(schedule_key("s1", row.id), row.model_copy(update=fields).encode()))


@pytest.fixture
def world(tmp_path: Path) -> World:
    folders = {name: tmp_path / name for name in ("workspace", "state", "data", "config")}
    for folder in folders.values():
        folder.mkdir()
    return World(WorkspacePaths(**folders), MemoryStore())


async def test_a_file_makes_a_schedule_that_is_named_after_it(world: World) -> None:
    world.write("roof.md")
    text = "---\ncron: '@daily'\nname: mine\nbudget: {cost_usd: 1.5}\ndeny: [Bash(rm *)]\nonce: true\n---\nSum up.\n"
    world.write_personal("sum.md", text)
    assert await world.sync() == ()
    rows = await world.rows()
    roof, mine = rows["roof"], rows["mine"]
    assert (roof.cron, roof.timezone, roof.prompt) == ("0 9 * * 1-5", "Europe/Berlin", "Look at the roof.")
    assert (roof.source, roof.created_by, roof.created_at) == (".callboard/schedules/roof.md", "file", world.now)
    assert (mine.source, mine.budget.cost_usd, mine.recurring) == (
        str(world.places.config / "schedules/sum.md"),
        1.5,
        False,
    )
    assert mine.rights.deny == ("Bash(rm *)",)


async def test_a_star_in_front_needs_no_quotes_and_a_comment_is_none_of_the_prompt(world: World) -> None:
    world.write("roof.md", "---\ncron: */10 * * * *\n# weekly\n---\nLook.\n")
    assert await world.sync() == ()
    assert (await world.rows())["roof"].cron == "*/10 * * * *"


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("Look.\n", "f.md:1: cron: is missing"),
        ("---\ntimezone: UTC\n---\nLook.\n", "f.md:1: cron: is missing"),
        ('---\ntimezone: UTC\ncron: "61 * * * *"\n---\nLook.\n', "f.md:3: cron: minute: "),
        (
            '---\ncron: "@daily"\n\ntimezon: UTC\n---\nLook.\n',
            "f.md:4: timezon: is not a field of a schedule: choose timezone,",
        ),
        ('---\ncron: "@daily"\ntimezone: Europe/Berln\n---\nLook.\n', "f.md:3: timezone: 'Europe/Berln'"),
        ('---\ncron: "@daily"\nbudget:\n  calls: 3\n---\nLook.\n', "f.md:3: budget: unknown kind 'calls'"),
        ('---\ncron: "@daily"\ndeadline: soon\n---\nLook.\n', "f.md:3: deadline: 'soon' is not a duration"),
        ('---\ncron: "@daily"\nprompt: Look.\n---\nLook.\n', "f.md:3: prompt: is the text below the front matter"),
        ('---\ncron: "@daily"\n---\n\n', "f.md:4: prompt: is empty"),
        ('---\ncron: "@daily"\n---\na\0b\n', "f.md:4: holds a NUL"),
        ('---\ncron: "@daily"\ncron: "@hourly"\n---\nLook.\n', "f.md:3: cron: is written twice"),
        ('---\ncron: "@daily"\nLook.\n', "f.md:1: the front matter opens with `---` and is never closed"),
        ("---\ncron: [a\n---\nLook.\n", "f.md:2: is not valid YAML"),
        ("---\n- a\n---\nLook.\n", "f.md:2: front matter is a mapping"),
    ],
)
def test_a_broken_file_is_told_with_file_line_and_field(text: str, told: str) -> None:
    with pytest.raises(SettingsError) as wrong:
        read_schedule(text.encode(), "f.md")
    assert str(wrong.value).startswith(told)


async def test_an_agent_type_that_no_file_defines_is_told_when_the_file_is_read(world: World) -> None:
    world.write("roof.md", "---\ncron: '@daily'\nagent_type: roofr\n---\nLook.\n")
    world.write("wall.md", "---\ncron: '@daily'\nagent_type: general\n---\nLook.\n")
    (fault,) = await world.sync()
    assert fault.startswith(".callboard/schedules/roof.md:3: agent_type: unknown type 'roofr': choose ")
    assert fault.endswith("Its fires are refused until a file defines it")
    assert set(await world.rows()) == {"roof", "wall"}, "the type may be added later"
    agents = world.places.workspace / ".callboard/agents"
    agents.mkdir()
    (agents / "roofr.md").write_text("---\nname: roofr\ndescription: Roofs.\n---\nWork.\n")
    assert await world.sync() == ()


def test_a_file_that_is_no_text_is_told() -> None:
    with pytest.raises(SettingsError, match=r"f\.md:2: is not UTF-8 text"):
        read_schedule(b"---\n\xff", "f.md")


async def test_a_file_that_breaks_leaves_the_schedule_that_stood_before(world: World) -> None:
    path = world.write("roof.md")
    await world.sync()
    before = (await world.rows())["roof"]
    for broken in (b"---\ncron: [\n---\nx", b"\xff\xfe", b"", b"x" * 1_100_000):
        path.write_bytes(broken)
        (fault,) = await world.sync()
        assert fault.startswith(".callboard/schedules/roof.md"), fault
        assert await world.rows() == {"roof": before}


async def test_a_change_keeps_the_history_and_a_pause_and_makes_nothing_up(world: World) -> None:
    path = world.write("roof.md")
    await world.sync()
    made_at = (await world.rows())["roof"].created_at
    await world.change("roof", last_slot=1_500.0, fires=3, state="paused", paused_why="by a person")
    path.write_text(LOOK.replace("the roof", "the walls"))
    await world.sync()
    row = (await world.rows())["roof"]
    assert (row.prompt, row.last_slot, row.fires) == ("Look at the walls.", 1_500.0, 3)
    assert (row.state, row.paused_why, row.created_at) == ("paused", "by a person", made_at)
    path.write_text(LOOK.replace("0 9", "0 10"))
    await world.sync()
    assert (await world.rows())["roof"].last_slot == world.now, "a new interval counts from now"


async def test_a_schedule_ends_with_its_file_and_counts_anew_when_it_is_back(world: World) -> None:
    path = world.write("roof.md")
    await world.sync()
    path.unlink()
    await world.sync()
    assert (await world.rows())["roof"].state == "cancelled"
    world.write("roof.md")
    await world.sync()
    row = (await world.rows())["roof"]
    assert (row.state, row.enabled, row.last_slot) == ("active", True, world.now)


async def test_one_name_twice_is_told_and_the_first_stays(world: World) -> None:
    world.write("a.md", LOOK.replace("---\n", "---\nname: look\n", 1))
    world.write("b.md", LOOK.replace("---\n", "---\nname: look\n", 1))
    other = Schedule(id="cron_x", cron="@daily", prompt="p", name="mine")
    await world.store.commit(Put(schedule_key("s1", other.id), other.encode()))
    world.write_personal("mine.md")
    faults = await world.sync()
    assert [fault.partition(": rename")[0] for fault in faults] == [
        ".callboard/schedules/b.md: name: look is already the name of .callboard/schedules/a.md",
        f"{world.places.config / 'schedules/mine.md'}: name: mine is already the name of cron_x",
    ]
    rows = await world.rows()
    assert (rows["look"].source, rows["mine"].id, len(rows)) == (".callboard/schedules/a.md", "cron_x", 2)


async def test_of_a_workspace_that_nobody_trusts_nothing_is_read_and_nothing_is_lost(world: World) -> None:
    path = world.write("roof.md")
    (fault,) = await world.sync(flag=False)
    assert "1 schedule file not read, since this workspace is not trusted as it is now" in fault
    assert await world.rows() == {}
    world.trust()
    assert await world.sync(flag=False) == ()
    path.write_text(LOOK.replace("the roof", "another's files"))
    assert len(await world.sync(flag=False)) == 1
    assert (await world.rows())["roof"].prompt == "Look at the roof.", "the trusted version stays in force"
    path.unlink()
    await world.sync(flag=False)
    assert (await world.rows())["roof"].state == "cancelled", "a deleted schedule is cancelled, trusted or not"


async def test_links_that_lead_out_are_refused(world: World, tmp_path: Path) -> None:
    outside = tmp_path / "outside.md"
    outside.write_text(LOOK)
    world.write("x.md").unlink()
    (world.places.workspace / ".callboard/schedules/link.md").symlink_to(outside)
    world.write_personal("y.md").unlink()
    (world.places.config / "schedules/link.md").symlink_to(outside)
    assert len(await world.sync()) == 2
    assert await world.rows() == {}


async def test_a_file_whose_name_is_not_utf8_is_named_and_the_others_count(world: World) -> None:
    world.write("roof.md")
    world.write(os.fsdecode(b"caf\xe9.md"))
    world.write_personal(os.fsdecode(b"caf\xe9.md"))
    faults = await world.sync()
    assert faults[0] == "'.callboard/schedules/caf\\udce9.md': its name is not UTF-8 text: rename the file"
    assert len(faults) == 2
    assert list(await world.rows()) == ["roof"]


@pytest.mark.skipif(os.geteuid() == 0, reason="root can read every folder")
async def test_a_folder_that_cannot_be_looked_into_ends_nothing(world: World) -> None:
    world.write_personal("roof.md")
    await world.sync()
    (world.places.config / "schedules").chmod(0)
    (fault,) = await world.sync()
    (world.places.config / "schedules").chmod(0o700)
    assert "cannot be looked into" in fault
    assert (await world.rows())["roof"].state == "active"


async def test_what_was_not_seen_is_not_gone(world: World) -> None:
    world.write_personal("roof.md")
    await world.sync()
    hidden = ScheduleFiles(unseen=(f"{world.places.config / 'schedules'}/",), faults=("hidden",))
    await sync_files(world.store, "s1", hidden, world.now)
    assert (await world.rows())["roof"].state == "active"
    assert faults_of(hidden, []) == ("hidden",)


async def test_a_row_of_a_newer_version_is_told_and_left_alone(world: World) -> None:
    path = world.write("roof.md")
    await world.sync()
    roof = (await world.rows())["roof"]
    newer = roof.encode().replace(b'"latest"', b'"as it will be"')
    keys = [schedule_key("s1", name) for name in (roof.id, "cron_x")]
    await world.store.commit(*(Put(key, newer) for key in keys))
    world.write("walls.md")
    path.write_text(LOOK + "More.\n")
    faults = await world.sync()
    assert ["written by a newer Callboard" in fault for fault in faults] == [True, True], faults
    assert [row.value for key in keys if (row := await world.store.get(key))] == [newer, newer]
    stored = await world.store.keys(f"{rows_prefix('s1')}schedule/")
    assert [b"walls.md" in (row.value or b"") for row in stored].count(True) == 1, "the other file has its schedule"


async def test_changes_are_heeded_as_they_come_also_of_folders_that_were_not_there(world: World) -> None:
    told, heard = list[str](), anyio.Event()

    def tell(line: str) -> None:
        nonlocal heard
        told.append(line)
        heard.set()
        heard = anyio.Event()

    async def session() -> str:
        return "s1"

    async def after(act: Callable[[], object]) -> str:
        before, waits = len(told), heard
        act()
        with anyio.fail_after(180):
            await waits.wait()
        assert len(told) > before
        return told[-1]

    async with anyio.create_task_group() as group:
        path = world.write_personal("roof.md")
        first = heard
        keep = partial(keep_file_schedules, world.store, session, world.places, WatchFactory(), flag=True, tell=tell)
        group.start_soon(keep)
        await first.wait()
        assert told == [f"{path}: its schedule is added"]
        assert (await after(lambda: path.write_text("---\n---\n"))).startswith(f"{path}:1: cron: is missing")
        assert await after(lambda: path.write_text(LOOK + "More.\n")) == f"{path}: its schedule is changed"
        shown = ".callboard/schedules/new.md"
        assert await after(lambda: world.write("new.md")) == f"{shown}: its schedule is added"
        swap = path.with_suffix(".tmp")
        swap.write_text(LOOK + "Even more.\n")
        assert await after(lambda: swap.rename(path)) == f"{path}: its schedule is changed"
        assert await after(path.unlink) == f"{path} is gone: its schedule is cancelled"
        group.cancel_scope.cancel()

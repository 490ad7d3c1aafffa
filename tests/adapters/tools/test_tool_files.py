"""The file tools stay inside the folder, change only files that the agent has read, and write files whole."""

from __future__ import annotations

import ctypes
import hashlib
import os
import threading
from pathlib import Path
from typing import Any, cast

import anyio
import pytest
from tests.adapters.shell.outside_world import OutsideWorld, text_of

from callboard.adapters.tools.files import SMALL, file_tools
from callboard.types.errors import ToolRefused

pytestmark = pytest.mark.anyio

READ, WRITE, EDIT, _ = file_tools()

PNG = b"\x89PNG\r\n\x1a\n" + bytes(20)


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
def world(tmp_path: Path) -> OutsideWorld:
    return OutsideWorld(tmp_path)


def sha(content: str | bytes) -> str:
    return hashlib.sha256(content.encode() if isinstance(content, str) else content).hexdigest()


# Reading


async def test_lines_come_with_their_numbers(world: OutsideWorld) -> None:
    path = world.write("a.txt", "one\ntwo\r\nthree")
    outcome = await world.run(READ, path="a.txt")
    assert text_of(outcome) == "     1\tone\n     2\ttwo\n     3\tthree"
    assert world.files == {str(path): sha(path.read_bytes())}


@pytest.mark.parametrize("size", [0, 1, SMALL - 1, SMALL, SMALL + 1])
async def test_a_small_file_and_a_larger_one_are_told_alike(world: OutsideWorld, size: int) -> None:
    content = ("0123456\n" * (size // 8 + 1))[:size]
    path = world.write("a.txt", content)
    outcome = await world.run(READ, path="a.txt", limit=1)
    assert world.files == {str(path): sha(content)}
    assert outcome.data is not None
    assert outcome.data["total_lines"] == len(content.splitlines())
    assert "0123456"[:size] in text_of(outcome)


@pytest.mark.parametrize("size", [10, SMALL + 10])
async def test_a_file_that_the_kernel_would_have_to_wait_for_is_read_by_a_thread(
    world: OutsideWorld, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.write("a.txt", "x" * size)

    def waits(*given: object) -> int:
        raise BlockingIOError

    monkeypatch.setattr(os, "preadv", waits)
    outcome = await world.run(READ, path="a.txt")
    assert text_of(outcome).startswith("     1\txxx")


async def test_a_part_is_read_by_offset_and_limit_and_the_digest_is_of_the_whole(world: OutsideWorld) -> None:
    path = world.write("a.txt", "".join(f"{number}\n" for number in range(1, 3001)))
    outcome = await world.run(READ, path=str(path), offset=5, limit=2)
    assert text_of(outcome) == "     5\t5\n     6\t6\n[Lines 5-6 of 3000. Read on with offset 7.]"
    assert world.files[str(path)] == sha(path.read_bytes())
    whole = text_of(await world.run(READ, path="a.txt"))
    assert whole.endswith("  2000\t2000\n[Lines 1-2000 of 3000. Read on with offset 2001.]")
    assert "there is no line 4000" in text_of(await world.run(READ, path="a.txt", offset=4000))


async def test_long_lines_are_cut_and_say_so(world: OutsideWorld) -> None:
    world.write("a.txt", "日" * 100_000 + "\nshort\n")
    lines = text_of(await world.run(READ, path="a.txt")).split("\n")
    assert lines[0] == "     1\t" + "日" * 2000 + " [line cut: 2000 of 100000 characters]"
    assert lines[1] == "     2\tshort"


@pytest.mark.parametrize("content", ["", "\n", "a", "a\n", "a\n\n", "\n\nb"])
async def test_every_line_is_counted_once(world: OutsideWorld, content: str) -> None:
    world.write("a.txt", content)
    outcome = await world.run(READ, path="a.txt")
    assert outcome.data["total_lines"] == len(content.splitlines())


async def test_bytes_that_are_no_text_are_replaced(world: OutsideWorld) -> None:
    world.write("a.txt", b"caf\xe9\n\xe9")
    assert text_of(await world.run(READ, path="a.txt")) == "     1\tcaf\ufffd\n     2\t\ufffd"


@pytest.mark.parametrize(
    ("content", "said"),
    [(b"a\0b", "binary data of 3 bytes"), (b"%PDF-1.7", "a PDF document of 8 bytes"), (b"\xff\xfea\0", "UTF-16")],
)
async def test_binaries_are_refused_politely(world: OutsideWorld, content: bytes, said: str) -> None:
    world.write("a.bin", content)
    outcome = await world.run(READ, path="a.bin")
    assert outcome.data == {"refused": True}
    assert said in text_of(outcome)


@pytest.mark.parametrize(
    ("content", "media"),
    [
        (PNG, "image/png"),
        (b"\xff\xd8\xff\xe0", "image/jpeg"),
        (b"GIF89a", "image/gif"),
        (b"RIFF\0\0\0\0WEBPVP8 ", "image/webp"),
    ],
)
async def test_images_are_shown_as_images(world: OutsideWorld, content: bytes, media: str) -> None:
    world.write("picture", content)
    outcome = await world.run(READ, path="picture")
    image = cast("list[dict[str, Any]]", outcome.content)[1]
    assert (image["type"], image["source"]["media_type"]) == ("image", media)


async def test_an_image_that_is_too_large_is_refused(world: OutsideWorld) -> None:
    world.write("picture.png", PNG + bytes(4_000_000))
    assert "Make it smaller" in text_of(await world.run(READ, path="picture.png"))


async def test_a_misspelt_path_is_answered_with_names_near_it(world: OutsideWorld) -> None:
    world.write("src/settings.py", "")
    assert "settings.py" in text_of(await world.run(READ, path="src/setings.py"))
    assert "use glob" in text_of(await world.run(READ, path="src"))


async def test_large_results_of_the_agent_may_be_read_but_not_written(world: OutsideWorld) -> None:
    path = world.results / "call_1.txt"
    path.write_bytes(b"whole\0output\n")
    outcome = await world.run(READ, path=str(path))
    assert text_of(outcome) == "     1\twhole\ufffdoutput"
    assert outcome.events == (), "a stored result is not a file of the workspace"
    assert "outside your folder" in text_of(await world.run(WRITE, path=str(path), content="x"))


async def test_reading_a_large_file_holds_little_memory(world: OutsideWorld) -> None:
    path = world.root / "large"
    with path.open("wb") as file:
        file.truncate(10)
        file.write(b"x" * 20_000_000 + b"\nend\n")
    assert text_of(await world.run(READ, path="large", offset=2)) == "     2\tend"


# Paths that a tool may use


def outside(world: OutsideWorld) -> Path:
    """Create a secret beside the workspace, with paths that lead to it, and return its folder."""
    secret = world.base / "work-private"
    secret.mkdir()
    (secret / "secret.txt").write_text("SECRET\n")
    (world.root / "link").symlink_to(secret)
    (world.root / "file").symlink_to(secret / "secret.txt")
    (world.root / "loop").symlink_to(world.root / "loop")
    (world.base / "state" / "store.db").write_text("SECRET\n")
    os.mkfifo(world.root / "fifo")
    return secret


@pytest.mark.parametrize(
    "path",
    [
        "../work-private/secret.txt",
        "link/secret.txt",
        "file",
        "link/new.txt",
        "loop",
        "sub/../../work-private/secret.txt",
        "../state/store.db",
        "/etc/passwd",
        "/proc/self/environ",
        "/dev/zero",
        "/dev/null",
        "fifo",
        "~/x",
        "a\0b",
        "",
        ".",
        "x" * 5000,
        "x" * 300,
        "\ud800",
    ],
)
async def test_nothing_outside_is_shown_or_changed(world: OutsideWorld, path: str) -> None:
    secret = outside(world)
    before = {one.name: one.stat().st_mtime_ns for one in (*secret.iterdir(), *(world.base / "state").iterdir())}
    with anyio.fail_after(180):
        for tool, fields in (
            (READ, {}),
            (WRITE, {"content": "CHANGED"}),
            (EDIT, {"old_text": "SECRET", "new_text": "CHANGED"}),
        ):
            outcome = await world.run(tool, path=path, **fields)
            assert outcome.data == {"refused": True}
            assert "SECRET" not in text_of(outcome)
    after = {one.name: one.stat().st_mtime_ns for one in (*secret.iterdir(), *(world.base / "state").iterdir())}
    assert after == before


async def test_links_inside_are_followed(world: OutsideWorld) -> None:
    path = world.write("real/a.txt", "one\n")
    (world.root / "short").symlink_to("real/a.txt")
    (world.root / "absolute").symlink_to(world.root / "real")
    assert text_of(await world.run(READ, path="short")) == "     1\tone"
    await world.run(WRITE, path="absolute/a.txt", content="two\n")
    assert path.read_text() == "two\n"
    assert (world.root / "short").is_symlink()


@pytest.mark.slow
async def test_a_link_swapped_in_meanwhile_leads_nowhere(world: OutsideWorld) -> None:
    secret = world.base / "private"
    secret.mkdir()
    (secret / "a.txt").write_text("SECRET\n")
    world.write("folder/a.txt", "open\n")
    (world.root / "swap").symlink_to(secret)
    names = [os.fsencode(world.root / name) for name in ("folder", "swap")]
    here, exchanging = -100, 2
    rename = ctypes.CDLL(None).renameat2
    stop = threading.Event()

    def exchange() -> None:
        while not stop.is_set():
            rename(here, names[0], here, names[1], exchanging)

    swapper = threading.Thread(target=exchange)
    swapper.start()
    told = {"open": 0, "refused": 0}
    try:
        for number in range(300):
            outcome = await world.run(READ, path="folder/a.txt")
            assert "SECRET" not in text_of(outcome)
            told["refused" if outcome.is_error else "open"] += 1
            await world.run(WRITE, path=f"folder/{number}.txt", content="x")
    finally:
        stop.set()
        swapper.join()
    assert [one.name for one in secret.iterdir()] == ["a.txt"]
    assert min(told.values()) > 0, "the race did not occur"


async def test_an_input_is_checked_again_unless_it_is_the_one_that_was_prepared(world: OutsideWorld) -> None:
    world.write("a.txt", "one")
    world.write("b.txt", "two")
    first, second = {"path": "a.txt"}, {"path": "b.txt"}
    context = world.context()
    await READ.prepare(first, context)
    assert "two" in text_of(await READ.run(second, context))
    await READ.prepare(second, context)
    with pytest.raises(ToolRefused):
        await READ.run({"path": "a.txt", "offset": 0}, context)
    await READ.prepare(first, context)
    assert "one" in text_of(await READ.run(first, context))
    assert "one" in text_of(await READ.run(first, context))

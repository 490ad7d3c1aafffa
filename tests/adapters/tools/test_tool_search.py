"""glob and grep return all matches, newest first, show nothing else, and never hang; both engines agree."""

from __future__ import annotations

import ctypes
import faulthandler
import os
import shutil
import threading
from pathlib import Path
from typing import Any

import anyio
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.adapters.shell.outside_world import ENVIRONMENT, OutsideWorld, text_of

from callboard.adapters.tools import search
from callboard.adapters.tools.roots import Roots
from callboard.adapters.tools.search import Grep, Searcher, search_tools
from callboard.adapters.tools.walking import read_rules
from callboard.core.path_globs import expand_braces, matcher
from callboard.ports.tool import Tool
from callboard.types.errors import ToolRefused

pytestmark = pytest.mark.anyio

GLOB = search_tools(Path("/nowhere"), ENVIRONMENT)[0]
RG = shutil.which("rg")


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(
    params=["own", pytest.param("rg", marks=pytest.mark.skipif(RG is None, reason="ripgrep is not installed"))]
)
def grep(request: pytest.FixtureRequest) -> Tool:
    return Grep(Searcher(ENVIRONMENT, RG if request.param == "rg" else None))


@pytest.fixture
def world(tmp_path: Path) -> OutsideWorld:
    """Create a small project; later files in the list are older."""
    world = OutsideWorld(tmp_path)
    files = {
        "src/app.py": "import os\n\ndef main():\n    return os.name\n",
        "src/deep/er/util.py": "def main_helper():\n    pass\n",
        "README.md": "# main\n",
        ".hidden/notes.md": "main thoughts\r\n",
        "build/out.py": "def main(): ignored\n",
        "src/local.py": "def main(): ignored\n",
        "secret.log": "main ignored\n",
        "keep.log": "main kept\n",
        "data.bin": b"main\0main\n",
        ".git/config": "main of git\n",
        "a b.txt": "main with a space\n",
        ".gitignore": "/build/\n*.log\n!keep.log\n",
        "src/.gitignore": "local.py\n",
        ".git/info/exclude": "never.txt\n",
        "never.txt": "main never\n",
    }
    for age, (name, content) in enumerate(files.items()):
        path = world.write(name, content)
        os.utime(path, (2_000_000 - age, 2_000_000 - age))
    outside = world.base / "private"
    outside.mkdir()
    (outside / "told.txt").write_text("main SECRET\n")
    (world.root / "link").symlink_to(outside)
    (world.root / "linked.txt").symlink_to(outside / "told.txt")
    os.mkfifo(world.root / "fifo")
    return world


async def lines(world: OutsideWorld, tool: Tool, **given: Any) -> list[str]:
    outcome = await world.run(tool, **given)
    assert not outcome.is_error, outcome.content
    return text_of(outcome).split("\n")


# glob


async def test_files_come_newest_first_without_what_git_ignores(world: OutsideWorld) -> None:
    found = await lines(world, GLOB, pattern="**/*.{py,md,log}")
    assert found == ["src/app.py", "src/deep/er/util.py", "README.md", ".hidden/notes.md", "keep.log"]


def test_two_walks_of_one_folder_share_no_position(world: OutsideWorld) -> None:
    """Each walk opens its own descriptor.

    Tools of one reply run in parallel. Copies of a descriptor share their position in the folder, so two walks
    missed files or returned them twice.
    """
    roots = Roots()
    first, second = roots.open(world.root), roots.open(world.root)
    try:
        with os.scandir(first) as one, os.scandir(second) as other:
            names = [next(one).name]
            assert sorted(entry.name for entry in other) == sorted(os.listdir(world.root))
            names += [entry.name for entry in one]
            assert sorted(names) == sorted(os.listdir(world.root))
    finally:
        os.close(first)
        os.close(second)


@pytest.mark.parametrize(
    ("pattern", "path", "found"),
    [
        ("*.md", ".", ["README.md"]),
        ("src/**", ".", ["src/app.py", "src/deep/er/util.py", "src/.gitignore"]),
        ("**/util.py", "src", ["src/deep/er/util.py"]),
        ("*/*.py", ".", ["src/app.py"]),
        ("[!a]* ?.txt", ".", ["No files fit."]),
        ("a ?.txt", ".", ["a b.txt"]),
        ("./src/*.py", ".", ["src/app.py"]),
        ("**/config", ".", ["No files fit."]),
    ],
)
async def test_a_glob_means_what_it_says(world: OutsideWorld, pattern: str, path: str, found: list[str]) -> None:
    assert await lines(world, GLOB, pattern=pattern, path=path) == found


async def test_a_long_list_is_cut_with_a_mark(world: OutsideWorld) -> None:
    for number in range(300):
        world.write(f"many/{number}.x", "")
    found = await lines(world, GLOB, pattern="many/*")
    assert len(found) == 251
    assert found[-1] == "[Output cut: 250 of 300 files. Narrow it by path or glob, or set head_limit.]"
    assert len(await lines(world, GLOB, pattern="many/*", head_limit=0)) == 300
    assert len(await lines(world, GLOB, pattern="many/*", head_limit=5)) == 6


async def test_without_a_limit_50000_characters_are_the_limit(world: OutsideWorld) -> None:
    for number in range(300):
        world.write(f"many/{number:0200}.x", "")
    text = text_of(await world.run(GLOB, pattern="many/*", head_limit=0))
    assert 49_000 < len(text) < 50_200
    assert "of 300 files" in text


@pytest.mark.parametrize("pattern", ["{a", "a}", "{" + "a," * 100 + "}", "x" * 2000])
async def test_what_is_no_glob_is_refused(world: OutsideWorld, pattern: str) -> None:
    outcome = await world.run(GLOB, pattern=pattern)
    assert "is not a glob" in text_of(outcome)


@pytest.mark.parametrize("path", ["..", "link", "/etc", "../private", "nowhere", "fifo"])
async def test_nothing_outside_is_listed_or_searched(world: OutsideWorld, grep: Tool, path: str) -> None:
    for outcome in (await world.run(GLOB, pattern="**", path=path), await world.run(grep, pattern="main", path=path)):
        assert outcome.is_error
        assert "told.txt" not in text_of(outcome)
        assert "SECRET" not in text_of(outcome)


def test_a_glob_takes_no_time_that_a_pattern_could_blow_up() -> None:
    faulthandler.dump_traceback_later(60, exit=True)  # a pattern with exponential backtracking would take years
    try:
        assert not matcher("*a*a*a*a*a*a*a*a*a*a*b")("a" * 250)
        assert not matcher("**/a/**/a/**/a/**/a/**/a/**/b")("/".join("a" * 100))
        assert not read_rules("*a*a*a*a*a*a*a*a*a*b\n**/**/**/**/**/x\n").match_file("a" * 250)
    finally:
        faulthandler.cancel_dump_traceback_later()


def test_an_ignore_file_with_a_broken_line_still_counts() -> None:
    rules = read_rules("*.log\n!\n/[z-a]\n[[:space:]]\n[[a]\n*.tmp\n")
    assert rules.match_file("a.log")
    assert rules.match_file("a.tmp")


@given(st.lists(st.sampled_from(["a", "b", "ab"]), min_size=1, max_size=5), st.data())
@settings(max_examples=150)
def test_a_pattern_made_from_a_path_fits_it(names: list[str], data: st.DataObject) -> None:
    pattern = [data.draw(st.sampled_from([name, "*", name[0] + "*", "**" + "/" + name])) for name in names]
    assert matcher("/".join(pattern))("/".join(names))
    assert not matcher("/".join([*pattern, "c"]))("/".join(names))


def test_braces_stand_for_each_of_their_parts() -> None:
    assert expand_braces("a{b,c{d,e}}f") == ["abf", "acdf", "acef"]


# grep


async def test_lines_come_with_path_and_number(world: OutsideWorld, grep: Tool) -> None:
    assert await lines(world, grep, pattern="main") == [
        "src/app.py:3:def main():",
        "src/deep/er/util.py:1:def main_helper():",
        "README.md:1:# main",
        ".hidden/notes.md:1:main thoughts",
        "keep.log:1:main kept",
        "a b.txt:1:main with a space",
    ]


async def test_the_other_modes_tell_files_and_counts(world: OutsideWorld, grep: Tool) -> None:
    given = {"pattern": "os|def", "glob": "*.py"}
    assert await lines(world, grep, **given, output_mode="files_with_matches") == ["src/app.py", "src/deep/er/util.py"]
    assert await lines(world, grep, **given, output_mode="count") == ["src/app.py:3", "src/deep/er/util.py:1"]


@pytest.mark.parametrize(
    ("glob", "files"),
    [
        ("*.py", {"src/app.py", "src/deep/er/util.py"}),
        ("src/*.py", {"src/app.py"}),
        ("**/er/*", {"src/deep/er/util.py"}),
        ("*.{md,txt}", {"README.md", ".hidden/notes.md", "a b.txt"}),
    ],
)
async def test_a_glob_narrows_the_search(world: OutsideWorld, grep: Tool, glob: str, files: set[str]) -> None:
    assert set(await lines(world, grep, pattern="main", glob=glob, output_mode="files_with_matches")) == files


async def test_context_lines_join_and_part(world: OutsideWorld, grep: Tool) -> None:
    world.write("c.txt", "".join(f"{number}{'!' if number in (2, 4, 9) else ''}\n" for number in range(1, 11)))
    assert await lines(world, grep, pattern="!", path="c.txt", context=1) == [
        "c.txt-1-1",
        "c.txt:2:2!",
        "c.txt-3-3",
        "c.txt:4:4!",
        "c.txt-5-5",
        "--",
        "c.txt-8-8",
        "c.txt:9:9!",
        "c.txt-10-10",
    ]


@pytest.mark.slow(keep=1)
@pytest.mark.parametrize(
    "pattern", ["^$", "$", "(?i)MAIN", r"\bmain\b", "-x", "--help", "thoughts$", "é", r"(?<=# )main", "[[m]"]
)
async def test_every_pattern_means_what_python_says(world: OutsideWorld, grep: Tool, pattern: str) -> None:
    world.write("p.txt", "-x\n\ncafé --help\nMain\n".encode() + b"\xff main\n" + b"x" * 3000 + b" main\n")
    mine = Grep(Searcher(ENVIRONMENT))
    assert await lines(world, grep, pattern=pattern) == await lines(world, mine, pattern=pattern)
    assert len(await lines(world, grep, pattern=pattern)) > 0


async def test_large_results_of_the_agent_may_be_searched(world: OutsideWorld, grep: Tool) -> None:
    path = world.results / "call_1.txt"
    path.write_text("one\nneedle\n")
    assert await lines(world, grep, pattern="needle", path=str(path)) == [f"{path}:2:needle"]
    assert await lines(world, grep, pattern="needle", path=str(world.results)) == [f"{path}:2:needle"]


async def test_many_hits_are_cut_with_a_mark(world: OutsideWorld, grep: Tool) -> None:
    world.write("many.txt", "hit\n" * 1000)
    found = await lines(world, grep, pattern="hit", path="many.txt")
    assert len(found) == 251
    assert found[-1].startswith("[Output cut: 250 of 1000 lines.")
    assert len(await lines(world, grep, pattern="hit", path="many.txt", head_limit=0)) == 1000
    world.write("wide.txt", ("hit" + "x" * 5000 + "\n") * 1000)
    text = text_of(await world.run(grep, pattern="hit", path="wide.txt", head_limit=0))
    assert len(text) < 51_000
    assert "[line cut: 500 of 5003 characters]" in text


async def test_names_of_any_bytes_are_searched(world: OutsideWorld, grep: Tool) -> None:
    for name in (b"new\nline.txt", b"caf\xe9.txt", b"-dash.txt"):
        Path(os.fsdecode(os.fsencode(world.root) + b"/" + name)).write_text("needle\n")
    found = text_of(await world.run(grep, pattern="needle"))
    assert {part for part in ("new\nline.txt:1:", "caf\ufffd.txt:1:", "-dash.txt:1:") if part in found} == {
        "new\nline.txt:1:",
        "caf\ufffd.txt:1:",
        "-dash.txt:1:",
    }


async def test_nothing_found_is_told(world: OutsideWorld, grep: Tool) -> None:
    assert await lines(world, grep, pattern="zebra") == ["No matches."]
    assert await lines(world, grep, pattern="main", glob="*.zebra") == ["No matches."]


async def test_a_search_that_fails_says_so_instead_of_finding_nothing() -> None:
    with pytest.raises(ToolRefused, match=r"the search ended with code 1: FileNotFoundError.*nowhere"):
        await Searcher(ENVIRONMENT).find(Path("/nowhere"), ["a.txt"], "x")


async def test_what_is_no_pattern_is_refused(world: OutsideWorld, grep: Tool) -> None:
    for pattern in ("(", "a\0b", "x" * 20_000):
        outcome = await world.run(grep, pattern=pattern)
        assert outcome.data == {"refused": True}
        assert "not a regular expression" in text_of(outcome)


async def test_half_a_surrogate_pair_is_refused(world: OutsideWorld, grep: Tool) -> None:
    assert (await world.run(grep, pattern="\ud800")).data == {"refused": True}


async def test_a_pattern_that_never_ends_is_ended(
    world: OutsideWorld, grep: Tool, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.write("trap.txt", "a" * 40 + "!\n")
    monkeypatch.setattr(search, "SECONDS", 0.5)
    with anyio.fail_after(180):
        outcome = await world.run(grep, pattern=r"^(?=a)(a+)+$", path="trap.txt")
    assert outcome.is_error
    assert "was stopped after 0.5 s" in text_of(outcome)


async def test_a_cancelled_search_ends(world: OutsideWorld, grep: Tool) -> None:
    world.write("trap.txt", "a" * 40 + "!\n")
    with anyio.fail_after(180), anyio.move_on_after(0.3) as scope:
        await world.run(grep, pattern=r"^(?=a)(a+)+$", path="trap.txt")
    assert scope.cancelled_caught


@pytest.mark.slow
async def test_a_link_swapped_in_meanwhile_shows_nothing(world: OutsideWorld, grep: Tool) -> None:
    world.write("folder/told.txt", "main open\n")
    (world.root / "swap").symlink_to(world.base / "private")
    names = [os.fsencode(world.root / name) for name in ("folder", "swap")]
    here, exchanging = -100, 2
    rename = ctypes.CDLL(None).renameat2
    stop = threading.Event()

    def exchange() -> None:
        while not stop.is_set():
            rename(here, names[0], here, names[1], exchanging)

    swapper = threading.Thread(target=exchange)
    swapper.start()
    told: set[str] = set()
    try:
        for _ in range(25):
            told.add(text_of(await world.run(grep, pattern="main (open|SECRET)", glob="told.txt")))
    finally:
        stop.set()
        swapper.join()
    assert not any("SECRET" in text for text in told)
    assert len(told) > 1, "the race did not occur"


async def test_a_folder_without_git_is_searched_as_well(tmp_path: Path, grep: Tool) -> None:
    world = OutsideWorld(tmp_path)
    world.write("a.txt", "needle\n")
    world.write(".gitignore", "b.txt\n")
    world.write("b.txt", "needle\n")
    assert await lines(world, grep, pattern="needle") == ["a.txt:1:needle"]


# One folder


LIST = search_tools(Path("/nowhere"), ENVIRONMENT)[2]


async def test_a_folder_is_listed_as_it_is(world: OutsideWorld) -> None:
    world.write("src/empty/x", "")
    (world.root / "src/link").symlink_to("app.py")
    lines = text_of(await world.run(LIST, path="src")).split("\n")
    sizes = {name: (world.root / "src" / name).stat().st_size for name in (".gitignore", "app.py", "local.py")}
    files = [f"{name} ({size} bytes)" for name, size in sizes.items()]
    assert lines == ["deep/", "empty/", *files[:2], "link (link)", files[2]]
    assert ".git/" in text_of(await world.run(LIST)).split("\n"), "its own folder, with hidden entries"


async def test_names_are_left_out_by_globs_and_an_empty_folder_says_so(world: OutsideWorld) -> None:
    assert text_of(await world.run(LIST, path="src", ignore=["*.py", "deep", ".*"])) == "There is nothing to list."
    assert "not a glob" in text_of(await world.run(LIST, path="src", ignore=["[" * 5_000]))


@pytest.mark.parametrize("path", ["src/app.py", "src/none", "../work2", "/etc", "~"])
async def test_only_a_folder_that_the_agent_may_read_is_listed(world: OutsideWorld, path: str) -> None:
    assert (await world.run(LIST, path=path)).is_error


async def test_a_large_folder_is_cut_and_counted(world: OutsideWorld) -> None:
    for number in range(1_002):
        world.write(f"many/{number}", "")
    text = text_of(await world.run(LIST, path="many"))
    assert text.endswith("[Only 1000 of 1002 entries are shown. Leave some out with ignore, or use glob.]")

"""Which files an instruction file includes: `@path` in prose, and nothing in code."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as hy

from callboard.core.context.project_instructions import MOST, includes_in, only_includes


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("See @docs/style.md.", ("docs/style.md",)),
        ("@a.md\n@b.md @a.md", ("a.md", "b.md")),
        ("(@a.md)", ()),
        ("( @a.md)", ("a.md",)),
        ("@~/mine.md and @../theirs.md, @./here.md!", ("~/mine.md", "../theirs.md", "./here.md")),
        ("@with\\ blank.md", ("with blank.md",)),
        ("mail me@home.org", ()),
        ("`@code.md` and ``@more `code`.md`` but @real.md", ("real.md",)),
        ("an open ` tick @real.md", ("real.md",)),
        ("```\n@fenced.md\n```\n@after.md", ("after.md",)),
        ("~~~ sh\n@fenced.md\n```\n~~~\n@after.md", ("after.md",)),
        ("````\n```\n@fenced.md\n````\n@after.md", ("after.md",)),
        ("```js @x.md``` @after.md", ("after.md",)),
        ("```\n@never.md", ()),
        ("a span `over\ntwo lines @x.md` @y.md", ("y.md",)),
        ("not `over\n\na paragraph @x.md`", ("x.md",)),
        ("@ @@a @#b @.", ()),
    ],
)
def test_an_include_is_a_path_behind_an_at_outside_code(text: str, found: tuple[str, ...]) -> None:
    assert includes_in(text) == found


@pytest.mark.parametrize(
    ("text", "only"),
    [
        ("@AGENTS.md\n", True),
        ("- @AGENTS.md\n- @more.md", True),
        ("# Title\n@AGENTS.md", False),
        ("@AGENTS.md\n```\ncode\n```", False),
        ("@AGENTS.md `code`", False),
        ("nothing", False),
        ("", False),
    ],
)
def test_a_file_that_only_includes_says_nothing_itself(text: str, only: bool) -> None:
    assert only_includes(text) is only


@given(
    hy.lists(hy.sampled_from(["`", "``", "```", "~~~", "\n", "@a.md", " ", "x", "\\ ", "@", "\0", "é"]), max_size=80)
)
def test_any_text_is_read_and_no_include_is_odd(parts: list[str]) -> None:
    found = includes_in("".join(parts))
    assert all(one and "\0" not in one and "`" not in one and one == one.strip() for one in found)


def test_much_of_it_is_read_quickly_and_not_without_end() -> None:
    assert len(includes_in(" ".join(f"@{n}.md" for n in range(10 * MOST)))) == MOST
    includes_in("".join("`" * (n % 50 + 1) + " " for n in range(50_000)))

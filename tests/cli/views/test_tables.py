"""Tables fit the screen: their widest cells are shortened, and the names of their rows stay whole."""

from __future__ import annotations

import io

from hypothesis import given
from hypothesis import strategies as st

from callboard.cli.terminal.terminal import Block, Line, Terminal, columns, stacked, wrap_line
from callboard.cli.views.listings import table

CELLS = st.text("abc漢 -", max_size=80)


@given(st.integers(2, 6).flatmap(lambda count: st.lists(st.lists(CELLS, min_size=count, max_size=count), min_size=1)))
def test_a_table_fits_any_screen_that_has_room_for_the_names_of_its_rows(rows: list[list[str]]) -> None:
    heads = [f"HEAD{number}" for number in range(len(rows[0]))]
    page = table(heads, rows, "nothing")
    names = max(columns(line.text.partition("  ")[0]) for line in table(heads[:1], [row[:1] for row in rows], "").lines)
    for width in (80, 100, 200):
        fitted = page.lines_for(width)
        assert len(fitted) == len(rows) + 1
        if names + (2 + 8) * (len(heads) - 1) <= width:
            assert all(columns(line.text) <= width for line in fitted)
        if all(columns(line.text) <= width for line in page.lines):
            assert fitted == page.lines, "nothing is shortened without need"
    assert page.lines_for(0) == page.lines


def test_an_id_stays_whole_and_the_longest_text_is_shortened() -> None:
    session = "7d74f8f7-a49d-4db7-9f7b-1b918ab37a89"
    page = table(("SESSION", "STATE", "PROMPT"), [(session, "running", "Mend the parser of the ledger " * 2)], "")
    assert [line.text for line in page.lines_for(60)] == [
        "SESSION                               STATE    PROMPT",
        f"{session}  running  Mend the par…",
    ]


def test_a_time_stays_whole_while_the_text_of_the_last_column_can_be_shortened() -> None:
    page = table(("SCHEDULE", "NEXT", "PROMPT"), [("cron_rrlrrp4svo7k", "2026-12-01 03:00:00", "Check the build")], "")
    assert page.lines_for(50)[1].text == "cron_rrlrrp4svo7k  2026-12-01 03:00:00  Check the…"
    assert page.lines_for(40)[1].text == "cron_rrlrrp4svo7k  2026-12-01…  Check t…"


def test_a_table_with_lines_below_it_fits_the_screen_too() -> None:
    page = stacked(table(("A", "B"), [("x", "y" * 58)], ""), Line("a note"))
    assert page.lines_for(0) == page.lines
    assert [line.text for line in page.lines_for(20)] == ["A  B", f"x  {'y' * 16}…", "a note"]


def test_a_script_gets_the_cells_as_they_are() -> None:
    out = io.StringIO()
    terminal = Terminal(out, io.StringIO())
    terminal.rows(table(("A", "B"), [("x", "y" * 58)], ""))
    terminal.close()
    assert "y" * 58 in out.getvalue()


def test_a_tab_takes_two_columns_so_that_a_line_breaks_where_it_is_measured() -> None:
    line = Line("1\t2025-01-24\t264.90 EUR\tcinema paid by ben for emil", name="lead")
    parts = wrap_line(line, 40)
    assert [part.text for part in parts] == ["1  2025-01-24  264.90 EUR  cinema", "paid by ben for emil"]
    assert Block((line,)).lines_for(40) == (line,)

"""Listings on terminals: no word is broken, whatever the width."""

import io

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console

from neobert import console
from neobert.console import Progress, Watch, table

WORDS = st.text("abcdefghijklmnop0123456789_.", min_size=1, max_size=40)
CELLS = st.lists(WORDS, min_size=1, max_size=4).map(" ".join)


def drawn(width: int, title: str, columns: list[str], rows: list[list[object]]) -> list[str]:
    file = io.StringIO()
    Console(file=file, width=width).print(table(title, columns, rows))
    return file.getvalue().splitlines()


@settings(max_examples=25)
@given(st.sampled_from((60, 80, 120)), st.lists(st.lists(CELLS, min_size=6, max_size=6), min_size=1, max_size=2))
def test_every_word_stands_whole_within_the_width(width: int, rows: list[list[str]]) -> None:
    lines = drawn(width, "a title", ["variant", "id", "state", "GB per GPU", "held-out loss", "folder"], list(rows))
    assert all(len(line) <= width for line in lines)
    shown = set("\n".join(lines).replace("│", " ").split())
    assert {word for row in rows for cell in row for word in cell.split()} <= shown


@pytest.mark.parametrize(("width", "is_table"), [(80, True), (40, False)])
def test_a_terminal_too_narrow_for_the_table_gets_a_line_for_each_value(width: int, is_table: bool) -> None:
    columns = ["unit", "id", "state", "folder"]
    lines = drawn(width, "units", columns, [["glue cola", "0123456789ab", None, "runs/glue/cola"]])
    assert any("│" in line for line in lines) == is_table
    assert is_table or lines[-4:] == [
        "  unit  glue cola",
        "    id  0123456789ab",
        " state  —",
        "folder  runs/glue/cola",
    ]


@pytest.mark.parametrize("width", [80, 40])
def test_brackets_in_a_value_are_no_markup(width: int) -> None:
    path = "a[/b]/c-[bold]-:dog:-0123456789"
    lines = drawn(width, "in old [v2]", ["path", "reason"], [[path, "left by a killed writer"]])
    assert "in old [v2]" in lines[0] and path in "\n".join(lines)


def test_cells_without_a_word_are_drawn() -> None:
    for cell in ("", " " * 30):
        assert any("│" in line for line in drawn(80, "a title", ["", "id"], [[cell, "0123456789ab"]]))
    assert drawn(80, "a title", [""], [])


RUNS = [Progress("M0 pre-training, seed 1", "steps", 240, 5000, ("loss 4.020", "4,389 tokens/s", "5 min left"))]


@pytest.mark.parametrize("is_terminal", [True, False])
def test_progress_has_labels_and_a_bar_on_a_terminal(is_terminal: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    screen = Console(file=io.StringIO(), width=80 if is_terminal else 200, force_terminal=is_terminal)
    monkeypatch.setattr(console, "logs", lambda: screen)
    monkeypatch.setattr(console, "PLAIN_INTERVAL_SECONDS", 0.0)
    with Watch(lambda: ("0 of 2 runs done", RUNS)) as watch:
        watch()
    shown = screen.file.getvalue()  # type: ignore[attr-defined]
    assert "0 of 2 runs done" in shown and "240/5,000 steps  loss 4.020  4,389 tokens/s  5 min left" in shown
    assert ("━" in shown) == is_terminal

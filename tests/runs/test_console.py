"""Tables and progress on terminals."""

import io

import pytest
from rich.console import Console

from neobert import console
from neobert.console import Progress, Watch, table


def drawn(width: int, title: str, columns: list[str], rows: list[list[object]]) -> list[str]:
    file = io.StringIO()
    Console(file=file, width=width).print(table(title, columns, rows))
    return file.getvalue().splitlines()


def test_ids_and_numbers_stand_whole_and_brackets_are_no_markup() -> None:
    path = "a[/b]/c-[bold]-:dog:-0123456789"
    lines = drawn(
        60, "in old [v2]", ["id", "path", "GB"], [["0123456789ab", path, None], ["", "left by a writer " * 9, 1]]
    )
    shown = "\n".join(lines)
    assert "in old [v2]" in lines[0] and all(word in shown for word in ("0123456789ab", "—", "[bold]"))
    assert all(len(line) <= 60 for line in lines)
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

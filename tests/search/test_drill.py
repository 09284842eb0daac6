"""The grid under fire: sixteen workers, five killed at random moments, sixty points, every storage."""

from pathlib import Path

import pytest

from neobert.runs.layout import Layout
from tests.search.grid_worlds import started, survive_kills

POINTS, WORKERS, KILLS = 60, 16, 5


@pytest.mark.drill
def test_sixty_points_survive_five_kills_of_sixteen_workers(tmp_path: Path, storage: str) -> None:
    """60 of 60 recorded, none published twice, none lost, and Optuna shows exactly that."""
    layout = Layout(tmp_path)
    survive_kills(layout, storage, points=POINTS, workers=WORKERS, kills=KILLS, seconds=1.0)
    starts = started(layout)
    print(f"{storage}: {POINTS} of {POINTS} points, {starts} starts after {KILLS} kills")
    assert POINTS <= starts <= POINTS + KILLS

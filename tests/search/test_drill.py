"""Grids and searches under fire: nothing is lost, doubled or wrong, and no worker crashes."""

from pathlib import Path
from typing import Any

import pytest

from neobert.runs.layout import Layout
from tests.search.drills import FAULTS, Drill
from tests.search.grid_worlds import search_by

SMALL: dict[str, Any] = {"points": 8, "workers": 2, "kills": 2, "seconds": 0.1, "lease_seconds": 1.0}
FULL: dict[str, Any] = {"points": 40, "workers": 6, "kills": 12, "seconds": 0.5, "lease_seconds": 2.0}
SIZES = (pytest.param(SMALL, id="small"), pytest.param(FULL, id="full", marks=pytest.mark.drill))
PRUNERS = {"tpe": "median", "qmc": "none"}


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("fault", FAULTS)
def test_a_grid_under_fire_loses_and_repeats_nothing(tmp_path: Path, fault: str, size: dict[str, Any]) -> None:
    Drill(Layout(tmp_path), **size).run(fault)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize(("sampler", "fault"), [("tpe", "kills"), ("qmc", "kills"), ("qmc", "deleted")])
def test_a_search_under_fire_loses_and_repeats_nothing(
    tmp_path: Path, sampler: str, fault: str, size: dict[str, Any]
) -> None:
    search = search_by(sampler, size["points"], PRUNERS[sampler])
    Drill(Layout(tmp_path), **size, search=search).run(fault)

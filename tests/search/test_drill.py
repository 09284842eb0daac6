"""Grids and searches under fire: nothing is lost, doubled or wrong, and no worker crashes."""

import time
from pathlib import Path
from typing import Any

import pytest

from neobert.runs.layout import Layout
from tests.search.drills import FAULTS, Drill
from tests.search.grid_worlds import search_by
from tests.search.postgresql import Server

SMALL: dict[str, Any] = {"points": 8, "workers": 2, "kills": 2, "seconds": 0.1, "lease_seconds": 1.0}
FULL: dict[str, Any] = {"points": 40, "workers": 6, "kills": 12, "seconds": 0.5, "lease_seconds": 2.0}
SIZES = (pytest.param(SMALL, id="small"), pytest.param(FULL, id="full", marks=pytest.mark.drill))
PRUNERS = {"tpe": "median", "qmc": "none"}
FAULTS_WITHOUT_A_FILE = ("kills", "pauses", "torn record", "new launcher")
OUTAGE_SECONDS = 5


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("fault", FAULTS)
def test_a_grid_under_fire_loses_and_repeats_nothing(
    tmp_path: Path, storage: str, fault: str, size: dict[str, Any]
) -> None:
    Drill(Layout(tmp_path), storage, **size).run(fault)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize(("sampler", "fault"), [("tpe", "kills"), ("qmc", "kills"), ("qmc", "deleted")])
def test_a_search_under_fire_loses_and_repeats_nothing(
    tmp_path: Path, storage: str, sampler: str, fault: str, size: dict[str, Any]
) -> None:
    search = search_by(sampler, size["points"], PRUNERS[sampler])
    Drill(Layout(tmp_path), storage, **size, search=search).run(fault)


@pytest.mark.parametrize(
    ("size", "fault", "sampler"),
    [
        pytest.param(SMALL, "kills", "tpe", id="small search"),
        pytest.param(SMALL, "torn record", None, id="small grid"),
        pytest.param(FULL, "kills", "tpe", id="search", marks=pytest.mark.drill),
        *(pytest.param(FULL, fault, None, id=fault, marks=pytest.mark.drill) for fault in FAULTS_WITHOUT_A_FILE),
    ],
)
def test_a_study_in_postgresql_under_fire_loses_and_repeats_nothing(
    tmp_path: Path, database: str, fault: str, sampler: str | None, size: dict[str, Any]
) -> None:
    search = sampler and search_by(sampler, size["points"], PRUNERS[sampler])
    Drill(Layout(tmp_path), database, **size, search=search).run(fault)


@pytest.mark.drill
@pytest.mark.parametrize("sampler", [None, "tpe"])
def test_a_postgresql_server_that_is_away_for_seconds_costs_nothing(
    tmp_path: Path, server: Server, database: str, sampler: str | None
) -> None:
    def outage() -> None:
        server.stop()
        time.sleep(OUTAGE_SECONDS)
        server.start()

    size = FULL | {"lease_seconds": 4.0 * OUTAGE_SECONDS}
    search = sampler and search_by(sampler, size["points"], PRUNERS[sampler])
    Drill(Layout(tmp_path), database, **size, search=search).run("kills", half_way=outage)

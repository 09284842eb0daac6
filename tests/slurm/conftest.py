"""One cluster for all tests that want one, at rest at the start of each."""

from collections.abc import Generator, Iterator
from pathlib import Path

import pytest

from tests.slurm.cluster import Cluster, reason_not_to_start

HERE = Path(__file__).parent


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Whatever stands in this folder is marked, so that `make test` starts no cluster by an oversight."""
    for item in items:
        if item.path.is_relative_to(HERE):
            item.add_marker(pytest.mark.slurm)


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    """Three nodes with 8 GPUs each. One that cannot start is a skip, one that fails to is an error."""
    if reason := reason_not_to_start():
        pytest.skip(reason)
    with Cluster() as running:
        yield running


@pytest.fixture(autouse=True)
def _at_rest(request: pytest.FixtureRequest) -> Iterator[None]:
    """What a test has broken is mended after it, and its jobs are cancelled."""
    yield
    if "cluster" in request.fixturenames:
        request.getfixturevalue("cluster").restore()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """A failed test shows the ends of the daemons' logs."""
    report = yield
    running = getattr(item, "funcargs", {}).get("cluster")
    if report.failed and running is not None:
        report.sections.append(("SLURM", running.log_tails()))
    return report

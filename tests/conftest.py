"""Options and defaults of the test run."""

import gc
import os
import signal
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import hypothesis
import pytest

from neobert import command_line, processes
from neobert.command_line import set_up_logging
from tests.ablations.fake_slurm import slurm  # noqa: F401  (fixture)
from tests.ablations.hub_stand_in import hub  # noqa: F401  (fixture)
from tests.ablations.papers_ladder import PAPERS_LADDER
from tests.ablations.toy_scale import toy_scale, toy_scale_of_module  # noqa: F401  (fixtures)
from tests.support import forking
from tests.support.golden_files import GoldenFiles

if TYPE_CHECKING:
    from tests.reports.made_up_study import MadeUpStudy

os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
hypothesis.settings.register_profile("untimed", deadline=None)  # an example may be slow on a busy machine
hypothesis.settings.load_profile("untimed")
START_CHILD, FSYNC = processes.start_child, os.fsync
HANDLED = (signal.SIGINT, *processes.ENDING, *processes.WARNINGS)
LONG_FILES = {
    *(
        "test_api.py",
        "test_readme.py",
        "test_run_command.py",
        "test_glue_grid_model.py",
        "test_study.py",
        "test_search.py",
        "test_drill.py",
    ),
    *("test_embedding_suite.py", "test_zero.py", "test_distributed.py", "test_compiling.py"),
    "test_passes.py",
}
"""They run first: one worker would work alone on a long file that comes last."""
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell lets its background jobs ignore it


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--write-golden", action="store_true", help="write golden files anew, and run no other test")


def pytest_configure(config: pytest.Config) -> None:
    """Every test but those of `-m gpu` takes the CPU, as on the machines where the others were written."""
    if config.option.markexpr == "gpu":
        os.environ.update(processes.gpu_variables(os.environ))  # as workers have them, before torch is imported
    else:
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
    set_up_logging()  # as commands do; tests call parts of them too


def pytest_collection_finish() -> None:
    """All that was imported and collected lives until the end, and is not searched for garbage again and again."""
    gc.freeze()
    gc.set_threshold(10_000)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.getoption("--write-golden"):
        writers = [item for item in items if "write_golden" in getattr(item, "fixturenames", ())]
        config.hook.pytest_deselected(items=[item for item in items if item not in writers])
        items[:] = writers
    items.sort(key=lambda item: item.path.name not in LONG_FILES)


def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("gpu") is not None:
        import torch

        if not torch.cuda.is_available():
            pytest.skip("no CUDA device")


@pytest.fixture(scope="session")
def write_golden(pytestconfig: pytest.Config) -> bool:
    """Whether golden files are to be written."""
    return bool(pytestconfig.getoption("--write-golden"))


@pytest.fixture(autouse=True, scope="session")
def forked_workers() -> Iterator[None]:
    """Commands that a test calls as functions fork their workers, which are real processes either way."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(processes, "start_child", forking.start_child)
        yield
    forking.close()


@pytest.fixture(autouse=True, scope="session")
def no_waiting_for_disks() -> Iterator[None]:
    """Tests and forked workers do not wait for disks: a file survives the process that wrote it without fsync."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("os.fsync", lambda descriptor: None)
        patch.setattr("sqlite3.dbapi2.connect", forking.connect)
        yield


@pytest.fixture(autouse=True)
def production_start(request: pytest.FixtureRequest) -> Iterator[None]:
    """Tests with the marker `production` start workers anew and wait for disks.

    Its patches are its own: if every test had `monkeypatch` this early, a test's patch would be undone after the
    fixtures that it changed something of.
    """
    with pytest.MonkeyPatch.context() as patch:
        if request.node.get_closest_marker("production") is not None:
            patch.setattr(processes, "start_child", START_CHILD)
            patch.setattr("os.fsync", FSYNC)
        yield


@pytest.fixture(autouse=True)
def errors_as_text() -> None:
    """A command with --json that a test calls as a function leaves its form of errors behind."""
    command_line._errors_as_json.set(False)


@pytest.fixture(autouse=True)
def signals_as_before() -> Iterator[None]:
    """A worker that a test calls as a function takes the signals of this process over for good."""
    before = {number: signal.getsignal(number) for number in HANDLED}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.fixture(scope="module")
def papers_ladder() -> Iterator[None]:
    """The ladder without variants that were added to the paper's, for what was recorded or printed before them."""
    from ablations import loading

    alone = {name: each for name, each in loading.papers().variants.items() if "@" in name or name in PAPERS_LADDER}
    own = replace(loading.papers(), variants=alone)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loading, "papers", lambda: own)
        yield


@pytest.fixture
def undrawn() -> Iterator[None]:
    """Figures are laid out but not drawn, for tests about everything else that reports write."""
    from tests.reports.made_up_study import undrawn_figures

    with undrawn_figures():
        yield


@pytest.fixture
def study(tmp_path: Path) -> "MadeUpStudy":
    """Made-up records of the synthetic data at smoke scale; none yet."""
    from tests.reports.made_up_study import MadeUpStudy

    return MadeUpStudy(tmp_path / "runs")


@pytest.fixture(scope="session")
def golden(write_golden: bool) -> GoldenFiles:
    """The files below tests/golden."""
    return GoldenFiles(write_golden)

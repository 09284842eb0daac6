"""A finished run, once for all tests of runs."""

from pathlib import Path

import pytest

from neobert.runs.layout import Layout
from neobert.runs.run_file import write_run_file
from tests.ablations.status_worlds import EXECUTION
from tests.support.tiny_runs import SOURCE, tiny_run, work


@pytest.fixture(scope="session")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of runs with one that is finished; others link to its corpus, and nothing is written there."""
    root = tmp_path_factory.mktemp("finished")
    labels = {"scale": "smoke", "data": "synthetic", "variants": ["M4"]}
    write_run_file(Layout(root), tiny_run(), SOURCE, EXECUTION, labels)
    assert work(root, tiny_run().reference) == 0
    return root

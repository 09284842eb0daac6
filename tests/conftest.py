"""Options and defaults of the test run."""

import os

import pytest
from prefetch_worlds import hub  # noqa: F401  (fixture)
from storages import postgresql_server, storage  # noqa: F401  (fixtures)

os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--write-golden", action="store_true", help="write golden files anew instead of comparing")


@pytest.fixture(scope="session")
def write_golden(pytestconfig: pytest.Config) -> bool:
    """Whether golden files are to be written."""
    return bool(pytestconfig.getoption("--write-golden"))

"""The storages of the grid's tests."""

import secrets
from collections.abc import Iterator

import pytest

from tests.search import postgresql


@pytest.fixture(params=("sqlite", "journal"))
def storage(request: pytest.FixtureRequest) -> str:
    """The name of each storage in turn, as the command takes it."""
    return str(request.param)


@pytest.fixture(scope="session")
def server() -> Iterator[postgresql.Server]:
    """A PostgreSQL server, where one can be started."""
    if reason := postgresql.reason_not_to_start():
        pytest.skip(reason)
    with postgresql.running() as server:
        yield server


@pytest.fixture
def database(server: postgresql.Server) -> str:
    """The address of an empty database."""
    return server.address(f"runs_{secrets.token_hex(4)}")

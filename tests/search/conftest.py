"""The storages of the grid's tests."""

import pytest


@pytest.fixture(params=("sqlite", "journal"))
def storage(request: pytest.FixtureRequest) -> str:
    """The name of each storage in turn, as the command takes it."""
    return str(request.param)

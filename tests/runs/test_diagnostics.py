"""Diagnostics: on stderr, with the rank where there are several, from the level that the environment names."""

import logging
from collections.abc import Iterator

import pytest

from neobert.command_line import guarded
from neobert.diagnostics import VARIABLE, set_up_logging
from neobert.errors import EXIT_DONE, EXIT_REFUSED

logger = logging.getLogger("neobert.somewhere")


@pytest.fixture(autouse=True)
def as_before(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    yield
    monkeypatch.undo()
    set_up_logging()


def act() -> int:
    logger.debug("detail")
    logger.info("progress")
    logger.warning("100% of it")
    return EXIT_DONE


def test_a_command_logs_to_stderr_from_info_on(tmp_path, capsys) -> None:
    assert guarded("x", act, tmp_path) == EXIT_DONE
    assert capsys.readouterr() == ("", "progress\n100% of it\n")


def test_lines_name_the_rank_where_there_are_several(capsys) -> None:
    set_up_logging(rank=3, ranks=8)
    act()
    assert capsys.readouterr().err == "[rank 3 of 8] progress\n[rank 3 of 8] 100% of it\n"


def test_the_level_is_the_environments(tmp_path, capsys, monkeypatch) -> None:
    monkeypatch.setenv(VARIABLE, "ERROR")
    assert guarded("x", act, tmp_path) == EXIT_DONE and capsys.readouterr().err == ""
    monkeypatch.setenv(VARIABLE, "loud")
    assert guarded("x", act, tmp_path) == EXIT_REFUSED
    assert capsys.readouterr().err == "x: NEOBERT_LOG=loud: the levels are debug, info, warning, error\n"

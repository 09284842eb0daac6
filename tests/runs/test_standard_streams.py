"""Commands end as they should where nobody reads a standard stream to the end; messages go to stderr."""

import logging
import subprocess
import sys
from pathlib import Path

import pytest

from neobert.command_line import guarded, set_up_logging
from neobert.processes import REPOSITORY


def shell(line: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run a line of bash in the repository, in which $python is this interpreter."""
    command = ["bash", "-o", "pipefail", "-c", line]
    environment = {"PATH": "/usr/bin:/bin", "python": sys.executable, **variables}
    return subprocess.run(command, cwd=REPOSITORY, env=environment, capture_output=True, text=True, check=False)


@pytest.mark.parametrize(
    "line",
    [
        *(f"$python ablations/status.py --runs $runs {reader}" for reader in ("2>&1 | true", "| head -1")),
        "$python ablations/run.py --help 2>&1 | true",
    ],
)
def test_a_reader_that_leaves_early_gets_no_traceback(finished: Path, line: str) -> None:
    ended = shell(line, runs=str(finished))
    assert ended.returncode == 0 and "Traceback" not in ended.stderr and "ignored" not in ended.stderr, ended.stderr


def test_a_refusal_that_nobody_reads_is_a_refusal() -> None:
    assert shell("$python ablations/run.py --variant M77 2>&1 | true").returncode == 2


def test_messages_go_to_stderr_and_name_the_rank_where_there_are_several(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    logger = logging.getLogger("neobert.somewhere")

    def act() -> int:
        logger.debug("detail")
        logger.warning("100% of it")
        return 0

    assert guarded("x", act, tmp_path) == 0
    set_up_logging(rank=3, ranks=8)
    logger.info("progress")
    set_up_logging()
    assert capsys.readouterr() == ("", "100% of it\n[rank 3 of 8] progress\n")

"""A live session: verdicts, error over its whole life, and a state that survives a kill."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from neobert.errors import DamagedFile
from neobert.referee import Session

ROOT = Path(__file__).resolve().parents[2]
LOOP = """
import sys
import numpy as np
from neobert.referee import Session
session = Session(0.1, 1.0, runs_behind=9, path=sys.argv[1])
draws = np.random.default_rng(0)
parent = [0.0]
for number in range(40):
    gain = 12.0 if number % 10 == 3 else 0.0
    child = []
    noise = draws.normal(size=30)
    while True:
        child.append(parent[0] - gain + noise[len(child)])
        verdict = session.judge(parent, child)
        print(number, len(child), verdict, flush=True)
        if verdict != "more":
            break
        if len(child) > 3:
            parent = [*parent, parent[0] + noise[-len(child)]]
    if verdict == "keep":
        parent = child
"""


def test_a_clear_gain_is_kept_and_a_loss_discarded() -> None:
    session = Session(0.1, 0.001, runs_behind=9)
    assert session.judge([1.0], [0.97]) == "keep"
    assert session.judge([0.97], [0.98]) == "discard"
    assert session.judge([0.97], [0.9665]) == "more", "three and a half spreads of one run do not show it"
    assert session.judge([0.97], [0.9665, 0.9667]) == "more"
    assert session.judge([0.97, 0.9701, 0.9699, 0.97], [0.9665, 0.9667, 0.9664, 0.9666, 0.9665]) == "keep"
    assert [change.verdict for change in session.changes] == ["keep", "discard", "keep"] and session.kept == 2


def test_paired_differences_need_no_spread() -> None:
    seeds = np.array([0.3, -0.2, 0.5, 0.1, -0.4, 0.2])
    noise = np.array([0.01, -0.02, 0.015, -0.01, 0.02, 0.0])
    session = Session(0.1, paired=True, changes=10)
    verdicts = [session.judge(list(seeds[:n]), list(seeds[:n] - 0.2 + noise[:n])) for n in range(1, 7)]
    assert verdicts[:2] == ["more", "more"] and "keep" in verdicts
    assert set(verdicts[verdicts.index("keep") + 1 :]) <= {"keep", "more"}


def test_a_change_that_nothing_shows_ends() -> None:
    session, draws = Session(0.1, 1.0, runs_behind=9, most_seeds=4), np.random.default_rng(0)
    parent, child = [0.0], [-3.0]  # lucky in the first run
    while (verdict := session.judge(parent, child)) == "more":
        (child if len(child) <= len(parent) else parent).append(float(draws.normal()))
    assert verdict == "discard" and 1 < len(child) <= 5 and len(session.changes) == 1
    assert Session(0.1, 1.0, runs_behind=9).judge([0.0], [1.0]) == "discard", "a loss takes one run"


def test_other_losses_than_the_last_are_a_new_change() -> None:
    session = Session(0.1, 1.0, runs_behind=9)
    assert session.judge([0.0], [-3.0]) == "more"
    assert session.judge([0.0], [-3.5]) == "more" and len(session.changes) == 2


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"alpha": 1.5}, "a share between 0 and 1"),
        ({"spread": 1.0}, "belong together"),
        ({"spread": 0.0, "runs_behind": 5}, "a number above 0"),
        ({"spread": 1.0, "runs_behind": 1}, "two runs at least"),
        ({"spread": 1.0, "runs_behind": 5, "paired": True}, "their own spread"),
        ({"most_seeds": 1}, "most_seeds 2 or more"),
    ],
)
def test_settings_that_mean_nothing_are_refused(settings: dict[str, float], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        Session(**{"alpha": 0.1, **settings})  # type: ignore[arg-type]


@pytest.mark.parametrize(("parent", "child"), [([], [1.0]), ([1.0], [float("nan")])])
def test_losses_that_are_none_are_refused(parent: list[float], child: list[float]) -> None:
    with pytest.raises(ValueError, match="one finite number per run"):
        Session(0.1).judge(parent, child)


def test_paired_lists_have_one_length() -> None:
    with pytest.raises(ValueError, match="as many of the parent"):
        Session(0.1, paired=True).judge([1.0, 2.0], [1.0])


def test_a_session_without_gains_keeps_nothing_in_nine_of_ten() -> None:
    """150 sessions of 10 changes; seeds are added as they are asked for."""
    draws, kept = np.random.default_rng(3), 0
    for _ in range(150):
        session = Session(0.1, float(draws.chisquare(4) / 4) ** 0.5, runs_behind=5, changes=10, most_seeds=5)
        parent = [float(draws.normal())]
        for _ in range(10):
            child, verdict = [float(draws.normal())], "more"
            while (verdict := session.judge(parent, child)) == "more":
                (child if len(child) <= len(parent) else parent).append(float(draws.normal()))
            parent = child if verdict == "keep" else parent
        kept += session.kept > 0
    assert kept <= 15


def test_a_kill_in_the_middle_changes_no_verdict(tmp_path: Path) -> None:
    """The loop is killed with SIGKILL again and again, and begins anew each time with the file that it left."""

    def words(file: Path) -> list[str]:
        return [sys.executable, "-c", LOOP, str(file)]

    whole = subprocess.run(words(tmp_path / "whole"), cwd=ROOT, check=True, capture_output=True, text=True).stdout
    state = tmp_path / "state"
    with subprocess.Popen(words(state), cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for _ in range(9):
            process.stdout.readline()
        os.kill(process.pid, signal.SIGKILL)
    before = json.loads(state.read_bytes())["changes"]
    assert 0 < len(before) < 40
    session = Session(0.1, 1.0, runs_behind=9, path=state)
    last = session.changes[-1]
    assert session.judge(last.parent, last.child) == last.verdict and len(session.changes) == len(before)
    reference = Session(0.1, 1.0, runs_behind=9, path=tmp_path / "whole")
    assert [c.verdict for c in session.changes[:-1]] == [c.verdict for c in reference.changes[: len(before) - 1]]
    for change in reference.changes[len(before) - 1 :]:
        session.judge(change.parent, change.child)
    assert session.changes == reference.changes and whole.count("keep") == session.kept > 0


def test_a_file_of_another_session_or_a_changed_one_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "state.json"
    Session(0.1, 1.0, runs_behind=9, path=path).judge([0.0], [5.0])
    with pytest.raises(ValueError, match=r"was begun with alpha 0\.1, not 0\.2"):
        Session(0.2, 1.0, runs_behind=9, path=path)
    path.write_bytes(path.read_bytes().replace(b"5.0", b"4.0"))
    with pytest.raises(DamagedFile, match="was changed"):
        Session(0.1, 1.0, runs_behind=9, path=path)

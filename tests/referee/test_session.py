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
import json
import sys
import numpy as np
from neobert.referee import Session
session = Session(0.1, 1.0, runs_behind=9, path=sys.argv[1])
draws = np.random.default_rng(0)
parent, level = [0.0], 0.0
for number in range(40):
    gain = 12.0 if number % 10 == 3 else 0.0
    child, noise, verdict = [], iter(draws.normal(size=60)), "more"
    while verdict == "more":
        if not child or session.next_run == "child":
            child.append(level - gain + next(noise))
        else:
            parent = [*parent, level + next(noise)]
        verdict = session.judge(parent, child)
        print(json.dumps([parent, child, verdict]), flush=True)
    if verdict == "keep":
        parent, level = child, level - gain
"""


def test_a_clear_gain_is_kept_and_a_loss_discarded() -> None:
    session = Session(0.1, 0.001, runs_behind=9)
    assert session.judge([1.0], [0.97]) == "more" and session.next_run == "parent", "30 spreads, against an older run"
    assert session.judge([1.0, 1.001], [0.97]) == "keep"
    assert session.judge([0.97], [0.98]) == "discard"
    assert session.judge([0.97], [0.9665]) == "more", "three and a half spreads of one run do not show it"
    assert session.judge([0.97], [0.9665, 0.9667]) == "more" and session.next_run == "parent"
    parent, child = [0.97, 0.9701, 0.9699, 0.97, 0.9702], [0.9665, 0.9667, 0.9664, 0.9666]
    assert session.judge(parent, child) == "keep"
    assert [change.verdict for change in session.changes] == ["keep", "discard", "keep"] and session.kept == 2


def test_a_parent_that_drifted_or_was_lucky_makes_no_keep() -> None:
    """Earlier runs of the parent look 30 spreads worse; those beside the change do not."""
    session, parent, child = Session(0.1, 1.0, runs_behind=9), [30.0, 30.5], [0.0]
    noise = iter([0.1, -0.4, 0.8, -0.2, 0.5, -1.1, 0.3, 0.9, -0.6, 0.2, 0.1, -0.3] * 3)
    while (verdict := session.judge(parent, child)) == "more":
        (parent if session.next_run == "parent" else child).append(next(noise))
    assert verdict == "discard" and len(parent) > 2


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
        (parent if session.next_run == "parent" else child).append(float(draws.normal()))
    assert verdict == "discard" and 1 < len(child) <= 4 and len(session.changes) == 1
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
                (parent if session.next_run == "parent" else child).append(float(draws.normal()))
            parent = child if verdict == "keep" else parent
        kept += session.kept > 0
    assert kept <= 15


def test_a_kill_in_the_middle_changes_no_verdict(tmp_path: Path) -> None:
    """A loop is killed with SIGKILL; what goes on with its file gets the verdicts of a loop that was not killed."""

    def words(file: Path) -> list[str]:
        return [sys.executable, "-c", LOOP, str(file)]

    whole = subprocess.run(words(tmp_path / "whole"), cwd=ROOT, check=True, capture_output=True, text=True).stdout
    calls = [json.loads(line) for line in whole.splitlines()]
    state = tmp_path / "state"
    with subprocess.Popen(words(state), cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for _ in range(9):
            process.stdout.readline()
        os.kill(process.pid, signal.SIGKILL)
    session = Session(0.1, 1.0, runs_behind=9, path=state)
    last = session.changes[-1]
    place = next(n for n, (parent, child, _) in enumerate(calls) if (parent, child) == (last.parent, last.child))
    assert 8 <= place < len(calls) - 1, "the loop was killed after its ninth verdict and before its last"
    assert [session.judge(parent, child) for parent, child, _ in calls[place:]] == [call[2] for call in calls[place:]]
    assert session.changes == Session(0.1, 1.0, runs_behind=9, path=tmp_path / "whole").changes and session.kept > 0


def test_a_file_of_another_session_or_a_changed_one_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "state.json"
    Session(0.1, 1.0, runs_behind=9, path=path).judge([0.0], [5.0])
    with pytest.raises(ValueError, match=r"was begun with alpha 0\.1, not 0\.2"):
        Session(0.2, 1.0, runs_behind=9, path=path)
    path.write_bytes(path.read_bytes().replace(b"5.0", b"4.0"))
    with pytest.raises(DamagedFile, match="was changed"):
        Session(0.1, 1.0, runs_behind=9, path=path)

"""Repeats that a log shows, their spread, and what is no yardstick."""

import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from neobert.errors import MissingData
from reports.logs.noise import Repeats, find_repeats, given_yardstick, measure_spread, read_replicates
from reports.logs.reading import Log, Run


def log_of(*runs: tuple[float, str, str], commits: Sequence[str] = ()) -> Log:
    """A log of (value, status, description)."""
    rows = [
        Run(line, value, status, words, commits[line - 2] if commits else "")
        for line, (value, status, words) in enumerate(runs, start=2)
    ]
    return Log("made-up", "loss", True, "", tuple(rows), True)


def lines(log: Log) -> list[tuple[int, ...]]:
    return [repeats.lines for repeats in find_repeats(log)]


def group(values: Sequence[float], sources: Sequence[str] = (), steps: Sequence[float] = ()) -> Repeats:
    runs = [
        Run(10 * n, value, "other", source=sources[n] if sources else "", steps=steps[n] if steps else None)
        for n, value in enumerate(values)
    ]
    return Repeats(tuple(runs), "made up")


def test_a_seed_alone_repeats_what_was_kept() -> None:
    log = log_of((1.0, "keep", "baseline"), (0.9, "keep", "rate 0.1"), (0.92, "discard", "random seed 42 to 137"))
    assert lines(log) == [(3, 4)]
    assert lines(log_of((1.0, "keep", "baseline"), (0.99, "discard", "exp26: SEED=0 slightly worse"))) == [(2, 3)]


def test_descriptions_that_differ_in_the_seed_alone_are_one_configuration() -> None:
    log = log_of(
        *((1.0, "keep", "baseline"), (0.8, "discard", "wide seed=1"), (0.7, "keep", "wide seed=2 (new best!)")),
        *((0.9, "discard", "wide seed0"), (0.6, "discard", "deep seed=1"), (0.5, "discard", "deeper seed=1")),
    )
    assert lines(log) == [(3, 4, 5)], "deep and deeper are two configurations"


def test_a_run_that_says_so_repeats_what_was_kept_unless_its_commit_differs() -> None:
    runs = ((1.0, "keep", "baseline"), (0.9, "keep", "rate 0.1"), (0.91, "discard", "rerun, no change"))
    assert lines(log_of(*runs)) == [(3, 4)]
    assert lines(log_of(*runs, commits=("aaaaaa1", "bbbbbb2", "bbbbbb2"))) == [(3, 4)]
    assert lines(log_of(*runs, commits=("aaaaaa1", "bbbbbb2", "cccccc3"))) == []


def test_the_same_words_on_another_base_are_no_repeat() -> None:
    """The commits differ, and so does what was kept between."""
    runs = (
        (1.0, "keep", "baseline"),
        (1.1, "discard", "rate 0.2"),
        (0.9, "keep", "wide"),
        (0.95, "discard", "rate 0.2"),
    )
    assert lines(log_of(*runs, commits=("aaaaaa1", "bbbbbb2", "cccccc3", "dddddd4"))) == []
    assert lines(log_of(*runs, commits=("aaaaaa1", "bbbbbb2", "cccccc3", "bbbbbb2"))) == [(3, 5)]
    assert lines(log_of(*runs)) == [], "near values show nothing"


def test_the_spread_is_pooled_within_groups() -> None:
    found = measure_spread([group([1.0, 1.2]), group([3.0, 3.1, 3.2])], logarithms=False)
    assert found.spread == pytest.approx(math.sqrt((0.02 + 0.02) / 3)) and found.degrees == 3
    relative = measure_spread([group([1.0, math.exp(0.2)])], logarithms=True)
    assert relative.spread == pytest.approx(0.2 / math.sqrt(2)) and relative.degrees == 1


def test_no_repeats_and_exact_repeats_are_no_yardstick() -> None:
    assert "no configuration that was run twice" in measure_spread([], False).refusal
    assert "deterministic" in measure_spread([group([1.0, 1.0]), group([2.0, 2.0])], False).refusal
    found = measure_spread([group([1.0, 1.0, 1.0]), group([2.0, 2.2])], False)
    assert (found.spread, found.degrees) == (pytest.approx(0.2 / math.sqrt(2)), 1), "the equal ones have no noise"
    assert "repeat exactly" in found.notes[0]


def test_load_is_no_noise_of_seeds() -> None:
    found = measure_spread([group([6.3, 6.9], steps=[270, 128])], logarithms=False)
    assert found.spread is None and "with 270 and 128 steps" in found.refusal
    runs = (Run(2, 1.09, "keep", "baseline"), Run(9, 1.26, "keep", "baseline with GPU contention"))
    named = measure_spread([Repeats(runs, "made up")], logarithms=False)
    assert named.spread is None and "under another load" in named.refusal
    kept = measure_spread([group([6.3, 6.9], steps=[270, 128]), group([1.0, 1.1], steps=[270, 265])], False)
    assert kept.degrees == 1 and kept.spread == pytest.approx(0.1 / math.sqrt(2)) and "no yardstick" in kept.notes[0]


def test_spread_between_agents_is_no_spread_of_runs() -> None:
    apart = measure_spread([group([1.0, 1.3], sources=["ada", "bob"])], False)
    assert apart.spread is None and "come from ada and bob" in apart.refusal
    differing = group([1.0, 1.01, 1.02, 1.3, 1.31, 1.32], sources=["ada"] * 3 + ["bob"] * 3)
    assert "differ more than repeats of one do" in measure_spread([differing], False).refusal
    alike = group([1.0, 1.3, 1.1, 1.05, 1.25, 1.12], sources=["ada"] * 3 + ["bob"] * 3)
    assert measure_spread([alike], False).degrees == 5


def test_a_collapsed_repeat_is_named_and_left_out() -> None:
    values = [55.3, 56.1, 338.7, 56.4, 56.8, 55.9, 55.0, 56.2, 55.5]
    found = measure_spread([group(values)], False)
    assert found.degrees == 7 and found.spread is not None and found.spread < 1 and "line" in found.notes[0]


def test_drift_is_refused_and_steady_noise_is_not() -> None:
    draws = np.random.default_rng(0)
    steady = [measure_spread([group(list(draws.normal(size=10)))], False).spread is None for _ in range(60)]
    trends = [measure_spread([group(list(draws.normal(size=10) + 0.6 * np.arange(10)))], False) for _ in range(60)]
    walks = [measure_spread([group(list(np.cumsum(draws.normal(size=12))))], False) for _ in range(60)]
    assert sum(steady) <= 6, "5 % of sound logs are refused"
    assert sum(each.spread is None for each in trends) >= 48 and "the noise drifts" in trends[0].refusal
    assert sum(each.spread is None for each in walks) >= 40


def test_replicates_come_from_a_file(tmp_path: Path) -> None:
    path = tmp_path / "seeds.txt"
    path.write_text("1.0\n1.2\n1.1\n")
    assert [run.value for run in read_replicates(path, "val_bpb")[0].runs] == [1.0, 1.2, 1.1]
    path.write_text("group,value\na,1\na,2\nb,5\n")
    assert [len(each.runs) for each in read_replicates(path, "val_bpb")] == [2]
    path.write_text("group,val_bpb\na,1\na,x\n")
    with pytest.raises(MissingData, match="line 3: 'x' is no number"):
        read_replicates(path, "val_bpb")
    path.write_text("group,value\na,1\nb,2\n")
    with pytest.raises(MissingData, match="no configuration has two runs"):
        read_replicates(path, "val_bpb")
    path.write_text("a,b\n1,2\n")
    with pytest.raises(MissingData, match="has no column value"):
        read_replicates(path, "val_bpb")
    assert given_yardstick(0.5, 9, unit=10.0).spread == 0.05 and given_yardstick(0.5, 9).degrees == 8

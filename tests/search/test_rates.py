"""Sweeps over rates: the rule tries what it always tried, killed workers lose and repeat nothing, Optuna shows it."""

import math
import signal
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import optuna
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from neobert.files import read_lines
from neobert.kinds.rates import RateRule, RateSearch
from neobert.rates import next_step
from neobert.runs.index import Index
from neobert.runs.layout import Layout
from neobert.search.space import Range, request_file
from neobert.search.storages import STORAGE_VARIABLE, storage_address, storage_at
from tests.search.grid_worlds import started
from tests.search.rate_worlds import RULE, SEEDS, dummy_sweep, loss_at, publish_loss, start_worker, work_through
from tests.support.waiting import until

SEARCH = RateSearch(
    sampler="tpe",
    trials=5,
    space={
        "peak_learning_rate": Range(low=1e-4, high=1e-1, log=True),
        "weight_decay": Range(low=0.01, high=0.3, log=True),
    },
)


@pytest.fixture(autouse=True)
def storage_of_workers(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    monkeypatch.setenv(STORAGE_VARIABLE, storage_address("journal", tmp_path))
    yield
    storage_at.cache_clear()


def assert_sweep_is_right(layout: Layout, by: RateRule | RateSearch) -> None:
    """Every trial was published once, and Optuna, read by itself, shows its loss."""
    sweep = dummy_sweep(by)
    trials = {trial.id: trial for trial in sweep.trials(layout)}
    assert Counter(line["part"] for line in read_lines(layout.root / "published.jsonl")) == dict.fromkeys(trials, 1)
    sweep.study(layout).show()
    (name,) = optuna.get_all_study_names(storage := storage_at(storage_address("journal", layout.root)).open())
    study = optuna.load_study(study_name=name, storage=storage)
    assert study.direction.name == "MINIMIZE"
    complete = [each for each in study.trials if each.state.name == "COMPLETE"]
    assert Counter(each.user_attrs["trial"] for each in complete) == dict.fromkeys(trials, 1)
    for each in complete:
        trial = trials[each.user_attrs["trial"]]
        assert (each.params, each.user_attrs["seed"], each.value) == (trial.point, trial.seed, trial.loss)
    assert {each.state.name for each in study.trials} <= {"COMPLETE", "FAIL"}
    assert Index(layout).progress(sweep).state == "done"


@settings(max_examples=12)
@given(place=st.floats(-5, 5), width=st.integers(1, 2), cliff=st.integers(0, 6), jitter=st.integers(0, 1000))
def test_the_rule_tries_the_steps_of_its_definition_in_their_order(
    place: float, width: int, cliff: int, jitter: int
) -> None:
    """Runs beyond the cliff have no finite loss. Seeds differ by noise, and the rule goes by their mean."""

    def loss(step: int, seed: int) -> float:
        noise = 0.3 * math.sin(jitter + 7 * step + seed)
        return math.nan if step > cliff else 9 + 0.2 * (step - place) ** 2 + noise

    def mean(step: int) -> float | None:
        return None if step > cliff else sum(loss(step, seed) for seed in SEEDS) / len(SEEDS)

    tried = {step: mean(step) for step in range(-width, width + 1)}
    while (step := next_step(tried, RULE.most)) is not None:
        tried[step] = mean(step)
    rule = RULE.model_copy(update={"width": width})
    with tempfile.TemporaryDirectory() as folder:
        layout, sweep = Layout(Path(folder)), dummy_sweep(rule)
        while pending := [trial for trial in sweep.trials(layout) if not trial.is_done]:
            for trial in pending:
                step = RULE.rates.index(trial.point["peak_learning_rate"]) - RULE.most
                if math.isnan(found := loss(step, trial.seed)):
                    trial.error.parent.mkdir(parents=True, exist_ok=True)
                    trial.error.write_text("{}")
                else:
                    publish_loss(trial, found)
            if all(trial.has_ended for trial in sweep.trials(layout)):
                break
        rates = [trial.point["peak_learning_rate"] for trial in sweep.trials(layout)]
    assert rates == [RULE.rate(step) for step in tried for _ in SEEDS]


@pytest.mark.parametrize("by", [RULE, SEARCH], ids=["rule", "tpe"])
def test_a_sweep_whose_workers_are_killed_goes_on_inside_the_others(tmp_path: Path, by: RateRule | RateSearch) -> None:
    layout = Layout(tmp_path)
    running = [start_worker(layout, by, 0.3) for _ in range(3)]
    for begun in (2, 6):
        until(lambda begun=begun: started(layout) >= begun)
        victim = running.pop(0)
        victim.send_signal(signal.SIGKILL)
        assert victim.wait() == -signal.SIGKILL
    assert running[0].wait(timeout=60) == 0
    assert_sweep_is_right(layout, by)
    rates = [trial.point["peak_learning_rate"] for trial in dummy_sweep(by).trials(layout)]
    if isinstance(by, RateRule):
        assert rates == [RULE.rate(step) for step in range(-1, 5) for _ in SEEDS], "up to the rate beyond the best"
    else:
        assert len(rates) == 5 * len(SEEDS) and rates[0] == 2e-3, "the variant's own point comes first"
        assert all(rate == float(f"{rate:.1e}") for rate in rates)


def test_a_study_that_is_lost_while_workers_run_is_made_again(tmp_path: Path) -> None:
    layout = Layout(tmp_path)
    worker = start_worker(layout, SEARCH, 0.1)
    until(lambda: started(layout) >= 4)
    (tmp_path / "optuna.journal").unlink()
    assert worker.wait(timeout=60) == 0
    assert_sweep_is_right(layout, SEARCH)


@pytest.mark.parametrize("torn", [1, 3])
def test_a_point_whose_file_is_torn_is_asked_for_again(tmp_path: Path, torn: int) -> None:
    layout, sweep = Layout(tmp_path), dummy_sweep(SEARCH)
    assert work_through(layout, SEARCH) == 0
    request = request_file(layout.root / sweep.folder, torn)
    request.write_bytes(request.read_bytes()[:10])
    assert Index(layout).progress(sweep).state != "done"
    assert work_through(layout, SEARCH) == 0
    assert len(sweep.asked(layout)) == SEARCH.trials and Index(layout).progress(sweep).state == "done"


def test_a_running_trial_is_shown_with_its_seed(tmp_path: Path) -> None:
    layout = Layout(tmp_path)
    worker = start_worker(layout, RULE, 1.0)
    until(lambda: any(tmp_path.glob("inside-*")))
    (running,) = dummy_sweep(RULE).study(layout).opened().trials
    assert running.state.name == "RUNNING" and running.user_attrs["seed"] == SEEDS[0]
    assert running.params == {"peak_learning_rate": RULE.rate(-1)}
    worker.send_signal(signal.SIGKILL)
    worker.wait()


def test_a_failed_run_is_told_fail_and_nothing_is_tried_beyond_its_rate(tmp_path: Path) -> None:
    layout, sweep = Layout(tmp_path), dummy_sweep(RULE)
    broken = sweep.trial(layout, {"peak_learning_rate": RULE.rate(2)}, SEEDS[1])
    (tmp_path / f"break-{broken.id}").touch()
    assert work_through(layout, RULE) == 1
    assert sweep.trials(layout)[-1].id == broken.id and Index(layout).progress(sweep).state == "failed"
    shown = sweep.study(layout).show().trials
    (failed,) = [each for each in shown if each.state.name == "FAIL"]
    assert failed.user_attrs["error"] == "RuntimeError: broken on purpose" and failed.user_attrs["seed"] == SEEDS[1]
    losses = {each.value for each in shown if each.state.name == "COMPLETE"}
    assert losses == {loss_at(trial.point, trial.seed) for trial in sweep.trials(layout) if trial.is_done}
    (tmp_path / f"break-{broken.id}").unlink()
    assert work_through(layout, RULE) == 0
    assert_sweep_is_right(layout, RULE)

"""A grid of points that cost nothing: real workers, claims, records and views over parts that only sleep."""

import os
import random
import signal
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from pydantic import PrivateAttr

from ablations.ladders import variants
from neobert.files import append_line, json_bytes, read_lines
from neobert.glue.optuna_view import (
    STORAGE_VARIABLE,
    OptunaView,
    open_storage,
    storage_address,
    study_name,
    view_of_environment,
)
from neobert.identity import plain
from neobert.kinds.glue import GlueStudy, Start, Trial
from neobert.processes import StopRequest
from neobert.recipe import Point
from neobert.runs.claims import LEASE_SECONDS, Claim, ClaimLost
from neobert.runs.layout import Layout
from neobert.runs.records import publish_record, read_record
from neobert.runs.run_file import RunFile
from neobert.runs.work import Part
from neobert.runs.worker import Worker
from tests.support import forking
from tests.support.waiting import until


class DummyStudy(GlueStudy):
    """A study that waits for nothing. Its trials sleep, report a curve that their number decides, and publish a
    record."""

    _seconds: float = PrivateAttr(0.0)

    @property
    def after(self) -> tuple[str, ...]:
        return ()

    def execute(self, layout: Layout, run_file: RunFile | None, part: Part, claim: Claim, stop: StopRequest) -> None:
        assert isinstance(part, Trial)
        number = POINTS.index(part.point)
        if (layout.root / f"break-{number}").exists():
            raise RuntimeError("broken on purpose")
        (layout.root / f"inside-{number}-{claim.number}").touch()
        curve = []
        for step in (1, 2):
            time.sleep(self._seconds / 2)
            curve.append([step, score_of(number) * step / 2])
        claim.check()
        record = {
            "kind": "glue",
            "id": part.id,
            "state": "done",
            "claim": claim.number,
            "scores": {"score": score_of(number), "curve": curve},
        }
        if not publish_record(part.record, record):
            raise ClaimLost("recorded by another process")
        append_line(layout.root / "published.jsonl", {"part": part.id})


def study_of(count: int, seconds: float = 0.0) -> DummyStudy:
    """The study of so many trials, which take `seconds` each."""
    study = DummyStudy(
        task="cola",
        weights="0123456789ab",
        stage=0,
        context=64,
        protocol=variants()["M0"].recipe.finetuning,
        points=POINTS[:count],
        seed=0,
        starts_from=Start(kind="pretraining", task=None, study=None, rule=None, reason=None),
        task_origin="tests",
        tokenizer_origin="tests",
    )
    study._seconds = seconds
    return study


POINTS = tuple(
    Point(batch_size=2**batch, learning_rate=1e-5 * (1 + rate), weight_decay=0.0)
    for batch in range(10)
    for rate in range(6)
)


def dummies(layout: Layout, count: int, seconds: float = 0.0) -> tuple[Trial, ...]:
    """The trials of the dummy study."""
    return study_of(count, seconds).trials(layout)


def work_through(
    layout: Layout, count: int, view: OptunaView, *, seconds: float = 0.0, lease_seconds: float = LEASE_SECONDS
) -> int:
    """One worker works through the grid; its exit code."""
    parts: list[Any] = [(None, trial) for trial in dummies(layout, count, seconds)]
    with closing(view):
        return Worker(layout, parts, StopRequest(), (view,), lease_seconds).run()


def score_of(number: int) -> float:
    """The score of a dummy point."""
    return round((number * 37 % 101) / 101, 6)


def view_of(layout: Layout, count: int, storage: str) -> OptunaView:
    """The view of the dummy study, opened anew."""
    return OptunaView(layout, storage_address(storage, layout.root), [study_of(count)])


def start_worker(
    layout: Layout, count: int, seconds: float, storage: str, lease_seconds: float = 60
) -> forking.ForkedProcess:
    """A real process with a real worker."""
    environment = os.environ | {STORAGE_VARIABLE: storage_address(storage, layout.root), forking.IMPORTED: "optuna"}
    arguments = [str(layout.root), str(count), str(seconds), str(lease_seconds)]
    return forking.start_worker(arguments, environment, program="tests.glue.grid_worlds")


def survive_kills(layout: Layout, storage: str, *, points: int, workers: int, kills: int, seconds: float) -> None:
    """Run the grid with workers of which some are killed at random and replaced; then demand exactly once."""
    view_of(layout, points, storage).close()
    chance = random.Random(0)
    running = [start_worker(layout, points, seconds, storage) for _ in range(workers)]
    for killed in range(kills):
        until(lambda begun=killed: started(layout) >= (begun + 1) * points // (kills + 2))
        victim = running.pop(chance.randrange(len(running)))
        victim.send_signal(signal.SIGKILL)
        victim.wait()
    assert {worker.wait(timeout=600) for worker in running} == {0}
    assert_exactly_once(layout, points, storage)


def started(layout: Layout) -> int:
    """How often any part was started."""
    return len(list(read_lines(layout.starts)))


def assert_exactly_once(layout: Layout, points: int, storage: str) -> None:
    """Every point has one record and was published once, and Optuna shows just that."""
    records = [read_record(dummy.record) for dummy in dummies(layout, points)]
    assert len(records) == points
    published = Counter(line["part"] for line in read_lines(layout.root / "published.jsonl"))
    assert set(published.values()) <= {1}, "a point was published twice"
    assert_shows_records(layout, points, storage)


def assert_shows_records(layout: Layout, points: int, storage: str) -> None:
    """Optuna's study holds every point COMPLETE once with parameters, value and curve; all other trials are FAIL."""
    trials = load(layout, points, storage).trials
    complete = [trial for trial in trials if trial.state.name == "COMPLETE"]
    parts = {dummy.id: dummy for dummy in dummies(layout, points)}
    assert {trial.state.name for trial in trials} <= {"COMPLETE", "FAIL"}
    assert Counter(trial.user_attrs["trial"] for trial in complete) == dict.fromkeys(parts, 1)
    for trial in complete:
        part = parts[trial.user_attrs["trial"]]
        record = read_record(part.record)
        assert trial.value == record["scores"]["score"] and trial.params == plain(part.point)
        assert trial.user_attrs["claim"] == record["claim"]
        assert trial.intermediate_values == dict(map(tuple, record["scores"]["curve"]))
    assert all("error" in trial.user_attrs for trial in trials if trial.state.name == "FAIL")


def load(layout: Layout, points: int, storage: str):
    """The study as Optuna itself reads it."""
    import optuna

    name = study_name(study_of(points))
    return optuna.load_study(study_name=name, storage=open_storage(storage_address(storage, layout.root)))


def fail_part(part: Part, claim: int, error: str) -> None:
    """An error file as a worker leaves it."""
    part.error.parent.mkdir(parents=True, exist_ok=True)
    part.error.write_bytes(json_bytes({"part": part.id, "name": part.title, "claim": claim, "error": error}))


def main(arguments: Sequence[str]) -> int:
    """The worker of a process of its own."""
    root, count, seconds, lease = arguments
    layout = Layout(Path(root))
    observer = view_of_environment(layout, [study_of(int(count))])
    assert observer is not None
    return work_through(layout, int(count), observer, seconds=float(seconds), lease_seconds=float(lease))

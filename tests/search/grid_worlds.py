"""A grid of points that cost nothing: real workers, claims, records and Optuna studies over parts that only sleep."""

import json
import math
import os
import signal
import sys
import time
import traceback
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pydantic import PrivateAttr

from ablations.loading import papers
from neobert.executors.search import run_search_trial
from neobert.executors.selection import best_trial
from neobert.files import append_line, json_bytes, read_lines
from neobert.identity import plain
from neobert.kinds.glue import GlueStudy, SearchTrial, Trial, TrialStart
from neobert.processes import StopRequest
from neobert.recipe import Point
from neobert.runs import claims
from neobert.runs.claims import LEASE_SECONDS, Claim, ClaimLost
from neobert.runs.index import Index
from neobert.runs.layout import Layout
from neobert.runs.records import publish_record, publish_sealed, read_record
from neobert.runs.run_file import RunFile
from neobert.runs.work import Part, Work
from neobert.runs.worker import Worker
from neobert.search import storages
from neobert.search.space import Range, Search, Space
from neobert.search.storages import STORAGE_VARIABLE, address_of_environment, storage_address, storage_at
from neobert.search.study import OptunaStudy
from neobert.search.subjects import GlueSubject, Report, by_tenths, tenth_of_epoch
from tests.support import forking


class DummyStudy(GlueStudy):
    """A study that waits for nothing. Its trials sleep, report a curve that their number decides, and publish a
    record. Files in the folder of runs make points fail, have no score, or kill their worker."""

    _seconds: float = PrivateAttr(0.0)
    _lease_seconds: float = PrivateAttr(LEASE_SECONDS)
    _sweep: OptunaStudy | None = PrivateAttr(None)

    def sweep(self, layout: Layout) -> OptunaStudy:
        """The Optuna study of this study, in the storage of the environment."""
        if self._sweep is None:
            storage = storage_at(address_of_environment(layout.root))
            self._sweep = OptunaStudy(GlueSubject(layout, self), storage, lease_seconds=self._lease_seconds)
        return self._sweep

    @property
    def after(self) -> tuple[str, ...]:
        return ()

    def ask(self, layout: Layout) -> tuple[Part, Claim] | None:
        return None if self.search is None else self.sweep(layout).take()

    def execute(self, layout: Layout, run_file: RunFile | None, part: Part, claim: Claim, stop: StopRequest) -> None:
        if isinstance(part, SearchTrial):
            run_search_trial(self.sweep(layout), part, claim, stop, self._run)
            append_line(layout.root / "published.jsonl", {"part": part.id})
        elif isinstance(part, Trial):
            with self.sweep(layout).running(part, claim) as reports:
                self._run(part, claim, reports)
        else:
            publish_sealed(part.record, {"study": self.id, "best": best_trial(layout, self)[0].id})

    def _run(self, trial: Trial, claim: Claim, report: Report) -> None:
        root, number = trial.layout.root, _number_of(trial)
        report = by_tenths(report, COURSE_STEPS, self.protocol.epochs)
        if (root / f"break-{number}").exists():
            raise RuntimeError("broken on purpose")
        (root / f"inside-{number}-{claim.number}").touch()
        if (root / f"kill-{number}").exists() and claim.number <= 2:
            append_line(root / "killed_themselves.jsonl", {"pid": os.getpid()})
            os.kill(os.getpid(), signal.SIGKILL)
        full, curve = score_at(trial.point, trial.study.seed), []
        for step in (1, 2):
            time.sleep(self._seconds / 2)
            curve.append([step, full * step / 2])
            report(step, full * step / 2)
            while (root / f"hold-{number}").exists():
                time.sleep(0.05)
        claim.check()
        score = None if (root / f"undefined-{number}").exists() else full
        record = {
            "kind": "glue",
            "id": trial.id,
            "state": "done",
            "claim": claim.number,
            "course_steps": COURSE_STEPS,
            "scores": {"score": score, "curve": curve},
        }
        if not publish_record(trial.record, record):
            raise ClaimLost("recorded by another process")
        append_line(root / "published.jsonl", {"part": trial.id})


def _number_of(trial: Trial) -> str:
    """The name of a trial in the files that make it fail: the number of its point, or the seed of a searched one."""
    return str(POINTS.index(trial.point)) if trial.point in POINTS else f"seed{trial.study.seed}"


def study_of(
    count: int, seconds: float = 0.0, lease_seconds: float = LEASE_SECONDS, search: Search | None = None
) -> DummyStudy:
    """The study of so many trials, which take `seconds` each, or a search."""
    study = DummyStudy(
        task="cola",
        weights="0123456789ab",
        stage=0,
        context=64,
        protocol=papers().variants["M0"].recipe.finetuning,
        points=POINTS[:count],
        seed=0,
        search=search,
        starts_from=TrialStart(kind="pretraining", task=None, study=None, rule=None, reason=None),
        task_origin="tests",
        tokenizer_origin="tests",
    )
    study._seconds = seconds
    study._lease_seconds = lease_seconds
    return study


SPACE = Space(
    batch_size=(8, 32),
    learning_rate=Range(low=1e-6, high=1e-2, log=True),
    weight_decay=Range(low=0, high=0.1, log=False),
)


def search_by(
    sampler: str, trials: int, pruner: str = "none", seeds: tuple[int, ...] = (0,), space: Space = SPACE
) -> Search:
    return Search.model_validate(
        {"sampler": sampler, "trials": trials, "pruner": pruner, "seeds": seeds, "space": space}
    )


COURSE_STEPS = 4
"""The dummy trials are stopped by patience after two of so many steps."""
POINTS = tuple(
    Point(batch_size=2**batch, learning_rate=1e-5 * (1 + rate), weight_decay=0.0)
    for batch in range(10)
    for rate in range(6)
)


def dummies(
    layout: Layout, count: int, seconds: float = 0.0, lease_seconds: float = LEASE_SECONDS
) -> tuple[Trial, ...]:
    """The trials of the dummy study."""
    return study_of(count, seconds, lease_seconds).trials(layout)


def execute(layout: Layout, run_file: RunFile, part: Part, claim: Claim, stop: StopRequest) -> None:
    """What workers execute in the place of `neobert.executors`."""
    assert isinstance(part.work, DummyStudy)
    part.work.execute(layout, run_file, part, claim, stop)


def ask(layout: Layout, work: Work) -> tuple[Part, Claim] | None:
    assert isinstance(work, DummyStudy)
    return work.ask(layout)


def work_through(
    layout: Layout,
    count: int,
    *,
    seconds: float = 0.0,
    lease_seconds: float = LEASE_SECONDS,
    search: Search | None = None,
    failures_since: float | None = None,
) -> int:
    """One worker works through the grid or the search, in the storage of the environment; its exit code."""
    study = study_of(count, seconds, lease_seconds, search)
    known = study.trials(layout) if search is None else study.parts(layout)
    parts: list[Any] = [(None, part) for part in known]
    return Worker(layout, parts, StopRequest(), lease_seconds, failures_since, execute=execute, ask=ask).run()


def score_of(number: int) -> float:
    """The score of a dummy point."""
    return round((number * 37 % 101) / 101, 6)


def score_at(point: Point, seed: int) -> float:
    """The score of a dummy trial: that of a grid's point, else the better the nearer the rate is to 1e-4."""
    if point in POINTS and seed == 0:
        return score_of(POINTS.index(point))
    return round(1 - 0.1 * abs(math.log10(point.learning_rate) + 4) + 0.001 * seed, 6)


def worker_arguments(
    layout: Layout,
    count: int,
    seconds: float,
    lease_seconds: float,
    search: Search | None = None,
    *,
    machine: str = "",
    failures_since: float | None = None,
) -> list[str]:
    """What `main` is given for a worker."""
    settings = {"seconds": seconds, "lease_seconds": lease_seconds, "failures_since": failures_since}
    named = [] if search is None else [search.model_dump_json()]
    return [str(layout.root), str(count), machine, json.dumps(settings), *named]


def start_worker(
    layout: Layout,
    count: int,
    seconds: float,
    storage: str,
    lease_seconds: float = 60,
    search: Search | None = None,
    *,
    machine: str = "",
    failures_since: float | None = None,
) -> forking.ForkedProcess:
    """A real process with a real worker; on a `machine` of another name, nobody else sees whether it lives."""
    environment = os.environ | {STORAGE_VARIABLE: storage_address(storage, layout.root), forking.IMPORTED: "optuna"}
    arguments = worker_arguments(
        layout, count, seconds, lease_seconds, search, machine=machine, failures_since=failures_since
    )
    return forking.start_worker(arguments, environment, program="tests.search.grid_worlds")


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
    """Once mended, Optuna's study holds every scored point COMPLETE once with parameters, value and curve; all other
    trials are FAIL."""
    trials = load(layout, points, storage).trials
    complete = [trial for trial in trials if trial.state.name == "COMPLETE"]
    parts = {dummy.id: dummy for dummy in dummies(layout, points) if dummy.is_done}
    scores = {name: read_record(part.record)["scores"]["score"] for name, part in parts.items()}
    assert {trial.state.name for trial in trials} <= {"COMPLETE", "FAIL"}
    scored = [name for name, score in scores.items() if score is not None]
    assert Counter(trial.user_attrs["trial"] for trial in complete) == dict.fromkeys(scored, 1)
    for trial in complete:
        part = parts[trial.user_attrs["trial"]]
        record = read_record(part.record)
        assert trial.value == scores[part.id] and trial.params == plain(part.point)
        assert trial.user_attrs["claim"] == record["claim"]
        epochs = part.study.protocol.epochs
        curve = {tenth_of_epoch(step, COURSE_STEPS, epochs): value for step, value in record["scores"]["curve"]}
        assert trial.intermediate_values == curve


def assert_search_is_right(layout: Layout, search: Search, storage: str = "journal", points: int = 0) -> None:
    """So many points as wanted were asked for, none was published twice, and Optuna shows what the records say."""
    study = study_of(points, search=search)
    asked = study.asked(layout)
    assert len(asked) == search.trials
    trials = {each.point: each for each in study.search_trials(layout)}
    published = Counter(line["part"] for line in read_lines(layout.root / "published.jsonl"))
    assert set(published.values()) <= {1}, "a trial was published twice"
    shown = [each for each in load(layout, points, storage, search).trials if each.state.name != "FAIL"]
    assert Counter(Point(**each.params) for each in shown) == Counter(asked.values())
    for each in shown:
        record = read_record(trials[Point(**each.params)].record)
        assert each.state.name == {"done": "COMPLETE", "pruned": "PRUNED"}[record["state"]]
        assert each.intermediate_values == dict(record["scores"]["curve"])
        if record["state"] == "done":
            assert each.value == record["scores"]["score"]
    assert Index(layout).progress(study).state == "done"


def load(layout: Layout, points: int, storage: str, search: Search | None = None) -> Any:
    """The study as Optuna itself reads it, after a launcher has made it agree with the records."""
    address = storage_address(storage, layout.root)
    subject = GlueSubject(layout, study_of(points, search=search))
    return OptunaStudy(subject, storage_at(address), lease_seconds=0.0).show()


def fail_part(part: Part, claim: int, error: str) -> None:
    """An error file as a worker leaves it."""
    part.error.parent.mkdir(parents=True, exist_ok=True)
    part.error.write_bytes(json_bytes({"part": part.id, "name": part.title, "claim": claim, "error": error}))


def main(arguments: Sequence[str]) -> int:
    """The worker of a process of its own. A crash is noted: its exit code is that of a point that has failed."""
    root, count, machine, settings, *named = arguments
    layout = Layout(Path(root))
    search = Search.model_validate_json(named[0]) if named else None
    if machine:
        storages.LOCK_SECONDS, storages.JOURNAL_LOCK_SECONDS = 5, 2  # a kill inside a lock costs as much
        claims._process_space = lambda: machine  # type: ignore[assignment]
    try:
        return work_through(layout, int(count), search=search, **json.loads(settings))
    except Exception:
        append_line(layout.root / "crashed.jsonl", {"error": traceback.format_exc()})
        raise


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

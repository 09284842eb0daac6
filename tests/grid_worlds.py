"""A grid of points that cost nothing: real workers, claims, records and views over a unit that only sleeps."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from neobert.files import append_line, json_bytes, publish_once, read_lines
from neobert.processes import REPOSITORY, StopRequest
from neobert.runs import claims
from neobert.runs.claims import Claim, ClaimLost
from neobert.runs.layout import Layout
from neobert.runs.optuna_view import (
    STORAGE_VARIABLE,
    GridPoint,
    Report,
    StudyView,
    mirror_of_environment,
    open_storage,
    storage_address,
)
from neobert.runs.records import publish_record, read_record
from neobert.runs.worker import Worker

STUDY = "0123456789ab"


@dataclass(frozen=True)
class DummyUnit:
    """Sleeps, reports a curve that its number decides, and publishes a record."""

    layout: Layout
    number: int
    seconds: float

    @property
    def id(self) -> str:
        return f"{self.number:012d}"

    @property
    def name(self) -> str:
        return f"dummy {self.number}"

    @property
    def error_path(self) -> Path:
        return self.layout.root / "errors" / f"{self.id}.json"

    @property
    def record_path(self) -> Path:
        return self.layout.trial("dummy", self.id)

    @property
    def grid_point(self) -> GridPoint:
        parameters = {"rate": 1e-5 * (1 + self.number % 6), "batch_size": 2 ** (self.number // 6)}
        claims = self.layout.claims(self.id)
        return GridPoint(STUDY, self.id, parameters, self.record_path, self.error_path, claims)

    def is_finished(self) -> bool:
        return self.record_path.exists()

    def is_ready(self) -> bool:
        return True

    def run(self, claim: Claim, stop: StopRequest, report: Report) -> None:
        if (self.layout.root / f"break-{self.number}").exists():
            raise RuntimeError("broken on purpose")
        (self.layout.root / f"inside-{self.number}-{claim.number}").touch()
        curve = []
        for step in (1, 2):
            time.sleep(self.seconds / 2)
            curve.append([step, score_of(self.number) * step / 2])
            report(step, curve[-1][1])
        claim.check()
        record = {
            "kind": "glue",
            "id": self.id,
            "state": "done",
            "claim": claim.number,
            "scores": {"score": score_of(self.number), "curve": curve},
        }
        if not publish_record(self.record_path, record):
            raise ClaimLost("recorded by another process")
        append_line(self.layout.root / "published.jsonl", {"unit": self.id})


def score_of(number: int) -> float:
    """The score of a dummy point."""
    return round((number * 37 % 101) / 101, 6)


def units_of(layout: Layout, count: int, seconds: float = 0.0) -> list[DummyUnit]:
    """The points of the dummy grid."""
    return [DummyUnit(layout, number, seconds) for number in range(count)]


def view_of(layout: Layout, count: int, storage: str) -> StudyView:
    """The view of the dummy study, opened anew."""
    points = [unit.grid_point for unit in units_of(layout, count)]
    return StudyView(open_storage(storage_address(storage, layout.root)), points)


def start_worker(
    layout: Layout, count: int, seconds: float, storage: str, lease_seconds: float = 60
) -> subprocess.Popen:
    """A real process with a real worker."""
    path = os.pathsep.join([str(REPOSITORY), str(Path(__file__).parent)])
    environment = os.environ | {STORAGE_VARIABLE: storage_address(storage, layout.root), "PYTHONPATH": path}
    arguments = [str(layout.root), str(count), str(seconds), str(lease_seconds)]
    return subprocess.Popen([sys.executable, "-m", "grid_worlds", *arguments], env=environment)


def survive_kills(layout: Layout, storage: str, *, points: int, workers: int, kills: int, seconds: float) -> None:
    """Run the grid with workers of which some are killed at random and replaced; then demand exactly once."""
    view_of(layout, points, storage).synchronize()
    chance = random.Random(0)
    running = [start_worker(layout, points, seconds, storage) for _ in range(workers)]
    for killed in range(kills):
        wait_for(lambda begun=killed: started(layout) >= (begun + 1) * points // (kills + 2))
        victim = running.pop(chance.randrange(len(running)))
        victim.send_signal(signal.SIGKILL)
        victim.wait()
    assert {worker.wait(timeout=600) for worker in running} == {0}
    assert_exactly_once(layout, points, storage)


def started(layout: Layout) -> int:
    """How often any unit was started."""
    return len(list(read_lines(layout.starts)))


def wait_for(condition, seconds: float = 120) -> None:
    """Wait until something is so."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def assert_exactly_once(layout: Layout, points: int, storage: str) -> None:
    """Every point has one record and was published once, and Optuna shows just that."""
    records = [read_record(unit.record_path) for unit in units_of(layout, points)]
    assert len(records) == points
    published = Counter(line["unit"] for line in read_lines(layout.root / "published.jsonl"))
    assert set(published.values()) <= {1}, "a point was published twice"
    assert_shows_records(layout, points, storage)


def assert_shows_records(layout: Layout, points: int, storage: str) -> None:
    """Optuna's study holds every point COMPLETE once with parameters, value and curve; all other trials are FAIL."""
    trials = load(layout, storage).trials
    complete = [trial for trial in trials if trial.state.name == "COMPLETE"]
    assert {trial.state.name for trial in trials} <= {"COMPLETE", "FAIL"}
    assert Counter(trial.user_attrs["trial"] for trial in complete) == {u.id: 1 for u in units_of(layout, points)}
    for trial in complete:
        unit = DummyUnit(layout, int(trial.user_attrs["trial"]), 0)
        record = read_record(unit.record_path)
        assert trial.value == record["scores"]["score"] and trial.params == dict(unit.grid_point.parameters)
        assert trial.user_attrs["claim"] == record["claim"]
        assert trial.intermediate_values == dict(map(tuple, record["scores"]["curve"]))
    assert all("error" in trial.user_attrs for trial in trials if trial.state.name == "FAIL")


def load(layout: Layout, storage: str):
    """The study as Optuna itself reads it."""
    import optuna

    return optuna.load_study(study_name=STUDY, storage=open_storage(storage_address(storage, layout.root)))


def claim_by_somebody_gone(folder: Path) -> None:
    """A claim whose owner was on this machine and is dead."""
    owner = {"host": os.uname().nodename, "pid": 2**22 + 1, "birth": "1", "space": claims._process_space()}
    publish_once(folder / "1", json.dumps(owner).encode())


def fail_unit(unit: DummyUnit, claim: int, error: str) -> None:
    """An error file as a worker leaves it."""
    unit.error_path.parent.mkdir(parents=True, exist_ok=True)
    unit.error_path.write_bytes(json_bytes({"unit": unit.id, "name": unit.name, "claim": claim, "error": error}))


if __name__ == "__main__":
    root, count, seconds, lease = sys.argv[1:]
    place = Layout(Path(root))
    units = units_of(place, int(count), float(seconds))
    observer = mirror_of_environment(place, [unit.grid_point for unit in units])
    assert observer is not None
    sys.exit(Worker(place, units, StopRequest(), observer, float(lease)).run())

"""A sweep over rates that costs nothing: real workers, claims, records and Optuna studies over runs that only sleep."""

import math
import os
import tempfile
import time
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

from pydantic import PrivateAttr

from neobert.files import append_line
from neobert.kinds.pretraining import PretrainingRun
from neobert.kinds.rates import Numbers, RateRule, RateSearch, RateSweep, RateTrial
from neobert.processes import StopRequest
from neobert.runs.claims import Claim, ClaimLost
from neobert.runs.layout import Layout
from neobert.runs.records import publish_record
from neobert.runs.run_file import RunFile
from neobert.runs.work import Part, Work
from neobert.runs.worker import Worker
from neobert.search.storages import STORAGE_VARIABLE, address_of_environment, storage_address, storage_at
from neobert.search.study import OptunaStudy
from neobert.search.subjects import RateSubject
from tests.support import forking

SEEDS = (1000, 1001)
RULE = RateRule(rates=tuple(2e-3 * 2.0**step for step in range(-5, 6)), width=1)


class DummySweep(RateSweep):
    """A sweep whose runs sleep and publish a loss; a file `break-<id>` in the folder of runs makes one fail."""

    _seconds: float = PrivateAttr(0.0)

    def study(self, layout: Layout) -> OptunaStudy:
        """The Optuna study of the sweep, in the storage of the environment."""
        return OptunaStudy(RateSubject(layout, self), storage_at(address_of_environment(layout.root)))

    def ask(self, layout: Layout) -> tuple[Part, Claim] | None:
        return self.study(layout).take() if self.search else None

    def execute(self, layout: Layout, run_file: RunFile | None, part: Part, claim: Claim, stop: StopRequest) -> None:
        assert isinstance(part, RateTrial)
        with self.study(layout).running(part, claim):
            (layout.root / f"inside-{part.id}-{claim.number}").touch()
            time.sleep(self._seconds)
            if (layout.root / f"break-{part.id}").exists():
                raise RuntimeError("broken on purpose")
            claim.check()
            publish_loss(part, loss_at(part.point, part.seed))
        append_line(layout.root / "published.jsonl", {"part": part.id})


def publish_loss(trial: RateTrial, loss: float) -> None:
    """The record of a run as far as sweeps read it."""
    corpus = trial.runs[-1].recipe.data.corpus
    record = {"kind": "pretraining", "id": trial.id, "state": "done", "scores": {"heldout_loss": {corpus: loss}}}
    if not publish_record(trial.record, record):
        raise ClaimLost("recorded by another process")


def loss_at(point: Numbers, seed: int) -> float:
    """The loss of a dummy run: a parabola over the octaves of the rate, with its vertex three octaves up."""
    octaves = math.log2(point["peak_learning_rate"] / 2e-3) - 3
    return round(3 + 0.1 * octaves**2 + 0.01 * (seed - SEEDS[0]), 9)


@cache
def template(name: str = "M2") -> tuple[PretrainingRun, ...]:
    """The stages of a variant at the smoke scale, on synthetic text."""
    from tests.ablations.plans import rows_of

    with tempfile.TemporaryDirectory() as folder:
        (row,) = rows_of(Path(folder), name, seeds=SEEDS[:1], stages=["pretraining"])
    return row.stages


def dummy_sweep(by: RateRule | RateSearch, seconds: float = 0.0) -> DummySweep:
    """The sweep of M2 with two seeds; each run takes `seconds`."""
    sweep = DummySweep(stages=template(), seeds=SEEDS, by=by)
    sweep._seconds = seconds
    return sweep


def execute(layout: Layout, run_file: RunFile, part: Part, claim: Claim, stop: StopRequest) -> None:
    """What workers execute in the place of `neobert.executors`."""
    assert isinstance(part.work, DummySweep)
    part.work.execute(layout, run_file, part, claim, stop)


def ask(layout: Layout, work: Work) -> tuple[Part, Claim] | None:
    assert isinstance(work, DummySweep)
    return work.ask(layout)


def work_through(layout: Layout, by: RateRule | RateSearch, seconds: float = 0.0) -> int:
    """One worker works through the sweep, in the storage of the environment; its exit code."""
    parts: list[Any] = [(None, part) for part in dummy_sweep(by, seconds).parts(layout)]
    return Worker(layout, parts, StopRequest(), execute=execute, ask=ask).run()


def start_worker(layout: Layout, by: RateRule | RateSearch, seconds: float) -> forking.ForkedProcess:
    """A real process with a real worker."""
    storage = {STORAGE_VARIABLE: storage_address("journal", layout.root)}
    environment = os.environ | storage | {forking.IMPORTED: "optuna"}
    arguments = [str(layout.root), str(seconds), by.model_dump_json()]
    return forking.start_worker(arguments, environment, program="tests.search.rate_worlds")


def main(arguments: Sequence[str]) -> int:
    """The worker of a process of its own."""
    root, seconds, by = arguments
    kind = RateRule if '"rule"' in by else RateSearch
    return work_through(Layout(Path(root)), kind.model_validate_json(by), float(seconds))

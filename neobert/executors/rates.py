"""A trial of a sweep over numbers of the optimizer: its stages of pre-training, one after the other."""

from functools import partial

from neobert.executors import pretraining
from neobert.executors.search import run_once
from neobert.kinds.pretraining import PretrainingRun
from neobert.kinds.rates import RateTrial
from neobert.processes import StopRequest
from neobert.runs.claims import Claim
from neobert.runs.layout import Layout
from neobert.runs.run_file import RunFile, read_checked_run_file, write_run_file
from neobert.runs.work import Part
from neobert.search.storages import address_of_environment
from neobert.search.study import optuna_study_of


def execute(layout: Layout, run_file: RunFile, part: Part, claim: Claim, stop: StopRequest) -> None:
    """Train a claimed trial. The run.json of each stage is written before it begins; an earlier stage may have a record
    of another trial, or a worker of its own, which is waited for."""
    assert isinstance(part, RateTrial)
    optuna_study = optuna_study_of(layout, part.work, address_of_environment(layout.root))
    labels = part.work.labels_at(run_file.labels, part.point)
    with optuna_study.running(part, claim):
        for run in part.runs:
            write_run_file(layout, run, run_file.source, run_file.execution, labels)
        for run in part.runs[:-1]:
            run_once(layout, run.closing(layout), stop, partial(_train, layout, run, stop))
        _train(layout, part.runs[-1], stop, claim)


def _train(layout: Layout, run: PretrainingRun, stop: StopRequest, claim: Claim) -> None:
    pretraining.execute(layout, read_checked_run_file(layout.root / run.folder), run.closing(layout), claim, stop)

"""A trial of a search: the trials of all seeds at its point, one after the other, and the record of their mean."""

import os
import statistics
import time
from collections.abc import Callable

from neobert.execution import utc_now
from neobert.files import set_aside
from neobert.identity import plain
from neobert.kinds.glue import SearchTrial, Trial
from neobert.processes import StopRequest
from neobert.runs.claims import LEASE_SECONDS, Claim, ClaimLost, acquire
from neobert.runs.layout import Layout
from neobert.runs.records import publish_sealed, timed_provenance
from neobert.runs.work import Part
from neobert.search.study import POLL_SECONDS, OptunaStudy, Reports
from neobert.search.subjects import Pruned, Report, ending_of

RunTrial = Callable[[Trial, Claim, Report], None]
"""Executes the claimed trial of one seed. It reports the values of its evaluations by tenths of an epoch."""


def run_search_trial(
    optuna_study: OptunaStudy, part: SearchTrial, claim: Claim, stop: StopRequest, run: RunTrial
) -> None:
    """Execute a claimed trial of a search and publish its record. `run` is called for each seed without a record.

    Raises ClaimLost if another worker has taken over the trial.
    """
    started_at, started = utc_now(), time.perf_counter()
    if os.path.lexists(part.record) and not part.is_done:  # of before a trial of it was lost
        set_aside(part.record, f"a trial of {part.title} is not there")
    with optuna_study.running(part, claim) as reports:
        state, score = _run_seeds(optuna_study, part, stop, run, reports)
        record = {
            "kind": "search",
            "id": part.id,
            "study": part.study.id,
            "point": plain(part.point),
            "state": state,
            "claim": claim.number,
            "seeds": {str(trial.study.seed): trial.id for trial in part.trials if trial.is_done},
            "scores": {"score": score, "curve": [list(pair) for pair in sorted(reports.curve.items())]},
            **timed_provenance(started_at),
            "seconds": round(time.perf_counter() - started, 3),
        }
        claim.check()
        if not publish_sealed(part.record, record):
            raise ClaimLost(f"{part.title} was recorded by another process; this result is dropped")


def _run_seeds(
    optuna_study: OptunaStudy, part: SearchTrial, stop: StopRequest, run: RunTrial, reports: Reports
) -> tuple[str, float | None]:
    """Run the trials of all seeds. Returns "done" with their mean, None if one has no score, or "pruned" with None."""
    has_one_seed, values = len(part.trials) == 1, []
    try:
        for number, trial in enumerate(part.trials, start=1):

            def run_claimed(claim: Claim, trial: Trial = trial) -> None:
                run(trial, claim, reports if has_one_seed else Reports())

            run_once(optuna_study.layout, trial, stop, run_claimed, optuna_study.lease_seconds)
            ending = ending_of(trial)
            assert ending is not None
            values.append(ending.value)
            if has_one_seed:
                reports.complete(ending.curve)
            else:
                reports(number, ending.value, may_prune=number < len(part.trials))
    except Pruned:
        return "pruned", None
    defined = [value for value in values if value is not None]
    return "done", statistics.fmean(defined) if len(defined) == len(values) else None


def run_once(
    layout: Layout,
    part: Part,
    stop: StopRequest,
    run: Callable[[Claim], None],
    lease_seconds: float = LEASE_SECONDS,
) -> None:
    """Run a part, unless it has a record; wait while another worker runs it."""
    while not part.is_done:
        claim = acquire(layout.claims(part.id), lease_seconds)
        if claim is None:
            stop.check(f"for {part.title}")
            time.sleep(POLL_SECONDS)
            continue
        with claim:
            if not part.is_done:
                run(claim)

"""What the page says of a record when somebody asks where a number comes from."""

from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from typing import Any

from ablations.ladder import M0
from ablations.modification import Recipe
from ablations.scales import Scale, scaled
from neobert.identity import difference, plain
from reports.cells import POINTS_OF_SCORE, point_name
from reports.formats import DASH, number
from reports.made import Made
from reports.page.costs import counted
from reports.page.numbers import Register
from reports.trials import Evidence, Run, Trial

BASE = "M0"
Described = Mapping[str, str]


def described_records(register: Register, descriptions: Mapping[str, Described]) -> list[list[int]]:
    """For each id of the register its fields and values, alternating, as places of words; empty for unknown ids."""
    lines = []
    for each in register.ids:
        known = descriptions.get(each, {})
        lines.append([register.word(text) for field, value in known.items() for text in (field, value)])
    return lines


def descriptions(evidence: Evidence, wanted: Iterable[str]) -> dict[str, Described]:
    """Runs and trials in words, by id."""
    runs = {run.id: run for run in evidence.runs}
    trials = {trial.id: trial for trial in evidence.trials}
    chosen = [trials[each] for each in wanted if each in trials]
    return {each: _of_run(runs[each]) for each in wanted if each in runs} | {
        trial.id: _of_trial(trial, runs.get(trial.run_id)) for trial in chosen
    }


def _of_run(run: Run) -> Described:
    changes = difference(_base(run.scale, run.data).pretraining, run.weights)
    losses = ", ".join(f"{number(loss, 4)} on {corpus}" for corpus, loss in run.heldout_loss.items())
    return {
        "Record": "pre-training",
        "State": "done",
        "Seed": str(run.seed),
        "Stage": str(run.stage + 1),
        "Continues": run.previous or "",
        "Held-out loss": losses,
        "Planned for": ", ".join(run.labelled),
        "Data id": run.made.data or DASH,
        "Data from": ", ".join(sorted(run.origins.values())),
        f"Config unlike {BASE}'s": _changes_in_words(changes, leave_out="seed"),
        **_costs(run.made),
        "Commit": run.made.code or "not recorded",
    }


def _of_trial(trial: Trial, run: Run | None) -> Described:
    protocol = _base(trial.scale, trial.data).finetuning
    score = DASH if trial.score is None else f"{number(trial.score * POINTS_OF_SCORE, 2)} points"
    return {
        "Record": f"GLUE trial, {trial.task}",
        "State": trial.state,
        "Score": score,
        "Batch/rate/decay": point_name(trial.point),
        "Seed": str(trial.seed),
        "Started from": f"the best trial of study {trial.start}" if trial.start else "pre-training",
        "Pre-training": trial.model or trial.run_id,
        "Seed of pre-training": "" if run is None else str(run.seed),
        "Data id": trial.made.data or DASH,
        f"Config unlike {BASE}'s": _changes_in_words(difference(protocol, trial.protocol)),
        **_costs(trial.made),
        "Commit": trial.made.code or "not recorded",
    }


@cache
def _base(scale: Scale, data: str) -> Recipe:
    return scaled(M0.recipe, scale, "trained" if data == "synthetic" else "published")


def _changes_in_words(changes: Mapping[str, Sequence[Any]], leave_out: str = "") -> str:
    kept = {path: pair for path, pair in changes.items() if path != leave_out}
    return "\n".join(f"{path}: {_value(old)} → {_value(new)}" for path, (old, new) in kept.items()) or "nothing"


def _value(value: Any) -> str:
    return DASH if value is None else f"{value:g}" if isinstance(value, float) else str(plain(value))


def _costs(made: Made) -> Described:
    seconds = "" if made.seconds is None else f"{number(made.seconds, 0)} s × {counted(made.processes, 'process')}"
    return {"Time": seconds, "Tokens read": "" if made.real_tokens is None else f"{made.real_tokens:,.0f}"}

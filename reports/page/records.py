"""What the page says of a record when somebody asks where a number comes from."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache, partial
from typing import Any

from ablations.ladder import M0
from ablations.scales import Scale, Vocabulary, scaled
from ablations.variant import Recipe
from neobert.identity import difference, plain
from reports.cells import POINTS_OF_SCORE, point_name
from reports.formats import DASH, number
from reports.made import Made
from reports.measurements import EmbeddingResult, PerplexityResult, ThroughputResult
from reports.page.costs import counted
from reports.page.numbers import Register
from reports.trials import Evidence, Run, Trial

BASE = "M0"
Described = Mapping[str, str]


def described_records(register: Register, evidence: Evidence) -> list[list[int]]:
    """For each id of the register its fields and values, alternating, as places of words; empty for unknown ids."""
    makers = dict(descriptions(evidence))
    lines = []
    for each in register.ids:
        known = makers[each]() if each in makers else {}
        lines.append([register.word(text) for field, value in known.items() for text in (field, value)])
    return lines


def descriptions(evidence: Evidence) -> Iterator[tuple[str, Callable[[], Described]]]:
    """Every record by id with what makes its words, since most are never asked for."""
    runs, measured = {run.id: run for run in evidence.runs}, evidence.measurements
    yield from ((run.id, partial(_of_run, run)) for run in evidence.runs)
    yield from ((trial.id, partial(_of_trial, trial, runs.get(trial.run_id))) for trial in evidence.trials)
    yield from ((each.id, partial(_of_embedding, each)) for each in measured.embeddings)
    yield from ((each.id, partial(_of_perplexity, each)) for each in measured.perplexities)
    yield from ((each.id, partial(_of_throughput, each)) for each in measured.throughputs)


def _of_run(run: Run) -> Described:
    changes = difference(_base(run.scale, run.vocabulary).pretraining, run.weights)
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
    protocol = _base(trial.scale, "published").finetuning
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


def _of_embedding(result: EmbeddingResult) -> Described:
    config = result.config
    score = DASH if result.score is None else f"{number(result.score * POINTS_OF_SCORE, 2)} points ({config.metric})"
    return {
        "Record": f"embedding task, {config.task} ({config.suite}, {config.protocol.replace('_', '-')})",
        "State": "failed" if result.score is None else "done",
        "Score": score,
        "Seed": str(result.seed),
        "Weights": result.weights,
        "Pre-training": result.model or result.run_id,
        "Data id": f"{config.task}, {config.split}, revision {config.revision or 'not recorded'}",
        **_costs(result.made),
        "Commit": result.made.code or "not recorded",
    }


def _of_perplexity(result: PerplexityResult) -> Described:
    config = result.config
    sampled = "all" if config.sampled_positions is None else f"{config.sampled_positions} a document"
    return {
        "Record": "pseudo-perplexity",
        "State": "done",
        "Stage": str(config.stage + 1),
        "Positions": sampled,
        "Pre-training": result.model or result.run_id,
        "Data id": result.made.data or config.text,
        **_costs(result.made),
        "Commit": result.made.code or "not recorded",
    }


def _of_throughput(result: ThroughputResult) -> Described:
    config = result.config
    return {
        "Record": f"throughput of {config.model}, {config.parameters:,} parameters",
        "State": "done",
        "Device": result.device,
        "Batch size": f"{config.batch_size} × {config.sequence_tokens:,} tokens, {config.steps} steps",
        "Precision": config.precision + (", compiled" if config.compiled else ""),
        "Date": result.date,
        "Commit": result.made.code or "not recorded",
    }


@cache
def _base(scale: Scale, vocabulary: Vocabulary) -> Recipe:
    return scaled(M0.recipe, scale, vocabulary)


def _changes_in_words(changes: Mapping[str, Sequence[Any]], leave_out: str = "") -> str:
    kept = {path: pair for path, pair in changes.items() if path != leave_out}
    return "\n".join(f"{path}: {_value(old)} → {_value(new)}" for path, (old, new) in kept.items()) or "nothing"


def _value(value: Any) -> str:
    return DASH if value is None else f"{value:g}" if isinstance(value, float) else str(plain(value))


def _costs(made: Made) -> Described:
    seconds = "" if made.seconds is None else f"{number(made.seconds, 0)} s × {counted(made.processes, 'process')}"
    return {"Time": seconds, "Tokens read": "" if made.real_tokens is None else f"{made.real_tokens:,.0f}"}

"""Printed numbers of the page with their records, and the page's descriptions of records."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import pandas as pd

from ablations.ladders import current
from ablations.scales import Scale, Vocabulary, scaled
from neobert.glue.tasks import TASKS
from neobert.identity import difference, plain
from neobert.recipe import FineTuning, Pretraining, Value
from reports.analysis.quantities import name_measurement, quantity_of
from reports.evidence import Evidence
from reports.scores import POINTS_OF_SCORE, point_name
from reports.tables import DASH, Table, count, frame_of, number

Described = Mapping[str, str]
TEXT = "lc"


@dataclass(frozen=True)
class Number:
    """A printed text; `key` is its entry in the register, None if there are no records behind it."""

    text: str
    key: int | None = None


class Register:
    """Assigns a key to every number and exports all of them as JSON; words, ids and lists of ids are stored once."""

    def __init__(self) -> None:
        self._words: dict[str, int] = {}
        self._ids: dict[str, int] = {}
        self._lists: dict[tuple[str, ...], int] = {}
        self._entries: dict[tuple[int, int, int], int] = {}

    def number(self, text: str, title: str, how: str, records: Sequence[str] | str) -> Number:
        """Register a number with its title, how it was computed, and the ids of its records or its place of
        publication. Without either, or as a dash, it has no key."""
        if not records or text in ("", DASH):
            return Number(text)
        if isinstance(records, str):
            how, records = f"printed in {current().published_as}: {records}", ()
        listed = tuple(records)
        if listed not in self._lists:
            self._lists[listed] = len(self._lists)
            for each in listed:
                self.mention(each)
        entry = self._word(title), self._word(how), self._lists[listed]
        return Number(text, self._entries.setdefault(entry, len(self._entries)))

    def _word(self, text: str) -> int:
        return self._words.setdefault(text, len(self._words))

    def mention(self, record_id: str) -> None:
        """Include a record that a number or another record refers to."""
        self._ids.setdefault(record_id, len(self._ids))

    def table(self, table: Table) -> Table:
        """Return the table with a `Number` for each cell; right-aligned cells are linked to their records."""
        rows = []
        for cells, records in zip(table.rows, table.records, strict=True):
            columns = list(zip(table.header, table.alignment, cells, strict=True))
            title = ", ".join(cell for _, side, cell in columns if side in TEXT and cell)
            own = records if isinstance(records, Mapping) else dict.fromkeys(table.header, records)
            rows.append(
                [
                    self.number(cell, f"{title}: {name}", table.title, () if side in TEXT else own.get(name, ()))
                    for name, side, cell in columns
                ]
            )
        return replace(table, shown=frame_of(rows, table.header))

    def plain(self, evidence: Evidence, folder: str) -> dict[str, Any]:
        """Return the register as JSON. `records` has the alternating fields and values of each id, as indices of words;
        it is empty for unknown ids. `files` has the indices of their paths below the `folder` of runs, with an asterisk
        in place of the id; None for records without a file."""
        described = _describe(evidence, set(self._ids))
        paths = ((each, evidence.files.get(each)) for each in self._ids)
        files = [None if path is None else self._word(path.replace(each, "*")) for each, path in paths]
        records = [
            [self._word(text) for field, value in described.get(each, {}).items() for text in (field, value)]
            for each in self._ids
        ]
        return {
            "words": list(self._words),
            "ids": list(self._ids),
            "records": records,
            "folder": folder,
            "files": files,
            "lists": [[self._ids[each] for each in ids] for ids in self._lists],
            "numbers": [list(entry) for entry in self._entries],
        }


def _describe(evidence: Evidence, wanted: set[str]) -> dict[str, Described]:
    """Return the descriptions of the wanted records, by id."""
    seeds = evidence.seeds
    losses: dict[str, list[str]] = {}
    own_context = evidence.heldout[evidence.heldout.context.isna()]
    for run, corpus, loss in zip(own_context.run, own_context.corpus, own_context.loss, strict=True):
        losses.setdefault(run, []).append(f"{number(loss, 4)} on {corpus}")
    values: dict[str, list[str]] = {}
    for each in evidence.readouts.itertuples():
        quantity = quantity_of(each.readout)
        value = number(quantity.factor * each.answer.value, quantity.digits)
        values.setdefault(each.id, []).append(name_measurement(value, each.corpus))
    changes = cache(_changes)
    describers: list[tuple[Any, Callable[[Any], Described]]] = [
        (
            pd.concat([evidence.runs, evidence.pilots]),
            lambda run: _describe_run(
                run, losses.get(run.id, []), changes(Pretraining, run.scale, run.vocabulary, run.recipe)
            ),
        ),
        (
            evidence.trials,
            lambda trial: _describe_trial(trial, seeds, changes(FineTuning, trial.scale, "published", trial.protocol)),
        ),
        (evidence.embeddings, _describe_embedding),
        (
            pd.concat([evidence.perplexities, evidence.readouts]),
            lambda record: _describe_readout(record, values.get(record.id, [])),
        ),
        (evidence.throughputs, _describe_throughput),
    ]
    return {
        record.id: describe(record)
        for frame, describe in describers
        for record in frame[frame.id.isin(wanted)].itertuples()
    }


def _describe_run(run: Any, losses: Sequence[str], changes: str) -> Described:
    return {
        "Record": "pre-training",
        "State": "done",
        "Seed": str(run.seed),
        "Stage": str(run.stage + 1),
        "Continues": run.previous or "",
        "Held-out loss": ", ".join(losses),
        "Planned for": ", ".join(run.variants),
        "Data id": run.data_id or DASH,
        "Data from": ", ".join(sorted(run.origins.values())),
        f"Config unlike {current().root.name}'s": changes,
        "Read by corpus": "; ".join(
            f"{corpus}: {read['tokens']:,} tokens of {read['documents']:,} documents"
            for corpus, read in run.read_by_corpus.items()
        ),
        **_costs(run),
    }


def _describe_trial(trial: Any, seeds: Mapping[str, int], changes: str) -> Described:
    return {
        "Record": f"{'GLUE' if trial.task in TASKS else 'fine-tuning'} trial, {trial.task}",
        "State": trial.state,
        "Score": _points(trial.score),
        "Batch/rate/decay": point_name(trial.point),
        "Seed": str(trial.seed),
        "Started from": f"the best trial of study {trial.start}" if trial.start else "pre-training",
        "Pre-training": trial.model or trial.run,
        "Seed of pre-training": str(seeds.get(trial.run, "")),
        "Data id": trial.data_id or DASH,
        f"Config unlike {current().root.name}'s": changes,
        **_costs(trial),
    }


def _describe_embedding(result: Any) -> Described:
    is_done = not math.isnan(result.score)
    return {
        "Record": f"embedding task, {result.task} ({result.suite}, {result.protocol.replace('_', '-')})",
        "State": "done" if is_done else "failed",
        "Score": f"{_points(result.score)} ({result.metric})" if is_done else DASH,
        "Seed": str(result.seed),
        "Weights": result.weights,
        "Pre-training": result.model or result.run,
        "Data id": f"{result.task}, {result.split}, revision {result.revision or 'not recorded'}",
        **_costs(result),
    }


def _describe_readout(record: Any, values: Sequence[str]) -> Described:
    facts = quantity_of(record.readout)
    is_perplexity = record.readout == "perplexity"
    own = {"Stage": str(record.stage + 1)} if is_perplexity else {"Value": f"{', '.join(values)} ({facts.unit})"}
    return {
        "Record": f"readout, {'pseudo-perplexity' if is_perplexity else facts.name}",
        "State": "done",
        **own,
        "Seed": str(record.seed),
        "Pre-training": record.run,
        "Data id": f"items {record.items}",
        **_costs(record),
    }


def _describe_throughput(result: Any) -> Described:
    return {
        "Record": f"throughput of {result.model}, {result.parameters:,} parameters",
        "State": "done",
        "Device": result.device,
        "Batch size": f"{result.batch_size} × {result.sequence_tokens:,} tokens, {result.steps} steps",
        "Precision": result.precision + (", compiled" if result.compiled else ""),
        "Date": result.date,
        "Commit": result.code or "not recorded",
    }


def _points(score: float) -> str:
    return f"{number(score * POINTS_OF_SCORE, 2)} points" if not math.isnan(score) else DASH


def _costs(record: Any) -> Described:
    """Describe time, tokens and code of a record; NaN means unknown."""
    seconds, tokens = record.seconds, record.real_tokens
    return {
        "Time": "" if math.isnan(seconds) else f"{number(seconds, 0)} s × {count(record.processes, 'process')}",
        "Tokens read": "" if math.isnan(tokens) else f"{tokens:,.0f}",
        "Commit": record.code or "not recorded",
    }


def _changes(part: type[Value], scale: Scale, vocabulary: Vocabulary, recipe: str) -> str:
    """List the fields of a part of a recipe (as JSON) that differ from the baseline's."""
    base = scaled(current().root.recipe, scale, vocabulary)
    theirs = base.pretraining if part is Pretraining else base.finetuning
    found = difference(theirs, part.model_validate_json(recipe)).items()
    lines = [f"{path}: {_value(old)} → {_value(new)}" for path, (old, new) in found if path != "seed"]
    return "\n".join(lines) or "nothing"


def _value(value: Any) -> str:
    return DASH if value is None else f"{value:g}" if isinstance(value, float) else str(plain(value))

"""What was measured on a checkpoint's weights, with the record, the data and its revision behind every number."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from neobert.export.source import PretrainedCheckpoint
from neobert.files import json_bytes, replace_file

HUB = "hub:"
EVALUATION_RESULTS = Path(".eval_results", "glue.yaml")


@dataclass(frozen=True)
class Score:
    """One number. `origin` is the identity of its data, as records have it: synthetic:…, directory:… or hub:….

    task: the task's name in the hub's words; dataset: the data set's name here; configuration: its part of it.
    """

    task: str
    dataset: str
    configuration: str
    split: str
    origin: str
    metric: str
    value: float
    notes: str

    @property
    def repository(self) -> tuple[str, str] | None:
        """Repository and revision on the hub; None for data from elsewhere, or from several repositories."""
        name, _, revision = self.origin.removeprefix(HUB).rpartition("@")
        return (name, revision) if self.origin.startswith(HUB) and name and "@" not in name else None

    def index_entry(self) -> dict[str, Any]:
        """The number as an entry of a model card's model-index."""
        name, revision = self.repository or (self.origin, None)
        dataset = {"name": f"{self.dataset} {self.configuration} ({self.origin})".replace("  ", " "), "type": name}
        dataset |= {"config": self.configuration, "split": self.split} if self.configuration else {}
        dataset |= {"revision": revision} if revision else {}
        metric = {"type": self.metric, "value": self.value, "name": f"{self.metric}, {self.notes}"}
        return {"task": {"type": self.task}, "dataset": dataset, "metrics": [metric]}


def scores_of(checkpoint: PretrainedCheckpoint) -> list[Score]:
    """Everything recorded: the held-out loss, and the best trial of each GLUE task. Empty for a step on the way."""
    record = checkpoint.record
    if record is None:
        return []
    heldout = [
        Score(
            task="fill-mask",
            dataset=corpus,
            configuration="",
            split="held out",
            origin=checkpoint.run.corpus_origin,
            metric="masked-token cross-entropy in nats",
            value=loss,
            notes=f"record {record['id']}",
        )
        for corpus, loss in record["scores"]["heldout_loss"].items()
    ]
    return heldout + [_best(trials) for _, trials in sorted(_trials(checkpoint).items())]


def _trials(checkpoint: PretrainedCheckpoint) -> dict[str, list[dict[str, Any]]]:
    """The records of each task that have a score: a constant prediction has no correlation."""
    trials: dict[str, list[dict[str, Any]]] = {}
    for record in checkpoint.glue_records():
        if record["scores"]["score"] is not None:
            trials.setdefault(record["config"]["task"], []).append(record)
    return trials


def _best(trials: list[dict[str, Any]]) -> Score:
    metrics = sorted(trials[0]["scores"]["metrics"])
    best = max(trials, key=lambda record: (record["scores"]["score"], record["id"]))
    return Score(
        task="text-classification",
        dataset="glue",
        configuration=best["config"]["task"],
        split="validation",
        origin=best["inputs"]["task"],
        metric=metrics[0] if len(metrics) == 1 else f"mean of {' and '.join(metrics)}",
        value=best["scores"]["score"],
        notes=f"best of {len(trials)} fine-tuning trials, record {best['id']}",
    )


def write_evaluation_results(checkpoint: PretrainedCheckpoint, folder: Path) -> None:
    """Write the hub's file of evaluation results, where there are any on data of the hub: others are no benchmark.

    The format is that of `huggingface_hub.EvalResultEntry`; JSON is YAML.
    """
    from huggingface_hub import EvalResultEntry, eval_result_entries_to_yaml

    entries = [
        EvalResultEntry(
            repository[0],
            score.configuration,
            score.value,
            repository[1],
            notes=f"{score.metric} on the {score.split} set, {score.notes}",
        )
        for score in scores_of(checkpoint)
        if score.configuration and (repository := score.repository)
    ]
    if entries:
        replace_file(folder / EVALUATION_RESULTS, json_bytes(eval_result_entries_to_yaml(entries)))

"""What is exported: one checkpoint of a run, with everything known about it."""

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from torch import Tensor

from neobert.data.preparation import open_specified, text_tokenizer
from neobert.data.tokenizers import TextTokenizer
from neobert.errors import MissingData
from neobert.model.build import build_masked_language_model
from neobert.model.heads import MaskedLanguageModel
from neobert.runs.layout import Layout
from neobert.runs.records import read_record, read_records
from neobert.runs.specifications import PretrainingRun, RunFile, read_run_file
from neobert.training import checkpoints


@dataclass(frozen=True)
class PretrainedCheckpoint:
    """A step of a run. `record` is the finished run's, None for milestones on the way."""

    folder: Path
    run_file: RunFile
    step: int
    weights: dict[str, Tensor]
    record: dict[str, Any] | None

    @property
    def run(self) -> PretrainingRun:
        """The specification of the run."""
        assert self.run_file.pretraining is not None
        return self.run_file.pretraining

    @property
    def layout(self) -> Layout:
        """The folder of runs that it lies in."""
        return Layout(self.folder.parent.parent)

    @cached_property
    def network(self) -> MaskedLanguageModel:
        """The flat engine with these weights, without dropout."""
        network = build_masked_language_model(self.run.recipe.model, self.run.context)
        network.load_state_dict(self.weights)
        return network.eval()

    @cached_property
    def tokenizer(self) -> TextTokenizer:
        """The run's tokenizer."""
        recipe = self.run.recipe
        source = open_specified(self.run_file.source)
        return text_tokenizer(
            self.layout, source, recipe.data.tokenizer, recipe.model.vocabulary_size, self.run.tokenizer_origin
        )

    def glue_records(self) -> list[dict[str, Any]]:
        """The finished fine-tuning trials on this run's last weights."""
        if self.record is None:
            return []
        records, _ = read_records(self.layout.root)
        return [
            record
            for record in records
            if record["kind"] == "glue"
            and record["state"] == "done"
            and record["inputs"]["pretraining"] == self.run_file.id
        ]


def open_checkpoint(folder: Path, step: int | None) -> PretrainedCheckpoint:
    """The checkpoint of `step`, or the last one of a finished run.

    Raises:
        ValueError: the folder holds another kind of run.
        MissingData: there is no such run or step, or the run is unfinished and no step is named.
        DamagedFile: a file does not match its checksum.
    """
    folder = folder.resolve()
    run_file = read_run_file(folder)
    if run_file.pretraining is None:
        raise ValueError(f"{folder} is a {run_file.kind}: give the folder of a pre-training or contrastive run")
    chosen, record = chosen_step(folder, run_file.pretraining.recipe.stages[-1].steps, step)
    weights = checkpoints.load(folder / "checkpoints", chosen).weights()
    return PretrainedCheckpoint(folder, run_file, chosen, weights, record)


def chosen_step(folder: Path, steps: int, step: int | None) -> tuple[int, dict[str, Any] | None]:
    """The step that is meant of a run of `steps`, and the record where that is a finished run's last.

    Raises:
        MissingData: the run is unfinished and no step is named.
    """
    is_done = (folder / "done.json").exists()
    if step is None and not is_done:
        known = ", ".join(map(str, checkpoints.steps_on_disk(folder / "checkpoints"))) or "none"
        raise MissingData(f"{folder} is not finished: name a checkpoint with --step (there: {known})")
    chosen = steps if step is None else step
    return chosen, read_record(folder / "done.json") if is_done and chosen == steps else None

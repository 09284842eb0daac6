"""Paths of all files in a folder of runs."""

from dataclasses import dataclass
from pathlib import Path

from neobert.files import is_there

SUBMISSION_CLAIM = "submission"
"""Claim for submitting jobs for a folder of runs."""


@dataclass(frozen=True)
class Layout:
    """Paths below `--runs`; creates nothing."""

    root: Path

    def data(self, data_id: str) -> Path:
        """A tokenised corpus."""
        return self.root / "data" / data_id

    def pretraining(self, run_id: str) -> Path:
        """A stage of pre-training: run.json, attempts/, checkpoints/, done.json."""
        return self.root / "pretraining" / run_id

    def trained(self, run_id: str) -> Path:
        """The folder of a training run of either kind."""
        contrastive = self.root / "contrastive" / run_id
        return contrastive if is_there(contrastive) else self.pretraining(run_id)

    def pairs(self, pairs_id: str) -> Path:
        """A data set of pairs in token ids."""
        return self.root / "data" / "pairs" / pairs_id

    def model(self, model_id: str) -> Path:
        """The description of an external model: its folder and what identifies it."""
        return self.root / "models" / model_id / "model.json"

    def study(self, task: str, study_id: str) -> Path:
        """A GLUE study (a grid on one model): run.json and, once closed, selection.json."""
        return self.root / "glue" / task / "studies" / study_id

    def trial(self, task: str, trial_id: str) -> Path:
        """The record of one GLUE trial; its predictions and weights are siblings with other suffixes."""
        return self.root / f"glue/{task}/{trial_id}.json"

    def embedding_task(self, task: str, result_id: str) -> Path:
        """The record of one embedding task on one encoder."""
        return self.root / "mteb" / task / f"{result_id}.json"

    def embedding_evaluation(self, evaluation_id: str) -> Path:
        """An evaluation of one encoder on embedding tasks: run.json, which lists the tasks."""
        return self.root / "mteb" / "evaluations" / evaluation_id

    @property
    def embedding_results(self) -> Path:
        """Files that mteb itself writes, in the layout of its ResultCache."""
        return self.root / "mteb" / "result_cache"

    def readout(self, name: str, result_id: str) -> Path:
        """The record of one readout of one checkpoint."""
        return self.root / "readouts" / name / f"{result_id}.json"

    def readout_items(self, items_id: str) -> Path:
        return self.root / "data" / "readouts" / f"{items_id}.json"

    def throughput(self, result_id: str) -> Path:
        """The record of one model's throughput at one length."""
        return self.root / "throughput" / f"{result_id}.json"

    def ladder(self, name: str, digest: str) -> Path:
        """The user's ladder file from which runs were planned. `digest` is the start of its content's hash."""
        return self.root / "ladders" / f"{name.removesuffix('.py')}-{digest}.py"

    def claims(self, name: str) -> Path:
        """The claims of one part of a run, or of anything else that one process at a time makes."""
        return self.root / "claims" / name

    @property
    def tracking(self) -> Path:
        """The state of tracking, and the trackers' own local files."""
        return self.root / "tracking"

    @property
    def starts(self) -> Path:
        """The file with one line per start of a part of a run."""
        return self.root / "starts.jsonl"

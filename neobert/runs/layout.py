"""Where everything lies under the folder of runs."""

from dataclasses import dataclass
from pathlib import Path

MANIFEST = "manifest.json"
"""The file of a tokenised corpus that is written last."""

PARTIAL = ".partial"
"""What the name of a tokenised corpus ends with while it grows."""


SUBMISSION_CLAIM = "submission"
"""The claim of whoever submits jobs for a folder of runs."""


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
        """The folder of a run that processes train together, of whichever kind it is."""
        contrastive = self.root / "contrastive" / run_id
        return contrastive if contrastive.exists() else self.pretraining(run_id)

    def pairs(self, pairs_id: str) -> Path:
        """A data set of pairs in token ids."""
        return self.root / "data" / "pairs" / pairs_id

    def model(self, model_id: str) -> Path:
        """The description of an external model: where it lies, and which one it is."""
        return self.root / "models" / model_id / "model.json"

    def study(self, task: str, study_id: str) -> Path:
        """A GLUE study (a grid on one model): run.json and, once closed, selection.json."""
        return self.root / "glue" / task / "studies" / study_id

    def trial(self, task: str, trial_id: str) -> Path:
        """The record of one GLUE trial; its predictions and weights are siblings with other suffixes."""
        return self.root / "glue" / task / f"{trial_id}.json"

    def resampled(self, task: str, trial_id: str) -> Path:
        """A trial's score on resamples of its examples, as a collected folder has it in place of predictions."""
        return self.root / "glue" / task / f"{trial_id}.resampled.npz"

    def embedding_task(self, task: str, result_id: str) -> Path:
        """The record of one embedding task on one encoder."""
        return self.root / "mteb" / task / f"{result_id}.json"

    def embedding_evaluation(self, evaluation_id: str) -> Path:
        """Tasks of embeddings on one encoder: run.json, which names the records that are to come."""
        return self.root / "mteb" / "evaluations" / evaluation_id

    @property
    def embedding_results(self) -> Path:
        """What mteb itself writes, as its ResultCache lays it out."""
        return self.root / "mteb" / "result_cache"

    def pseudo_perplexity(self, result_id: str) -> Path:
        """The record of one checkpoint's pseudo-perplexity."""
        return self.root / "pseudo_perplexity" / f"{result_id}.json"

    def readout(self, name: str, result_id: str) -> Path:
        """The record of one readout of one checkpoint."""
        return self.root / "readouts" / name / f"{result_id}.json"

    def readout_items(self, items_id: str) -> Path:
        """The texts and items that readouts ask about."""
        return self.root / "data" / "readouts" / f"{items_id}.json"

    def throughput(self, result_id: str) -> Path:
        """The record of one model's speed at one length."""
        return self.root / "throughput" / f"{result_id}.json"

    def forecast(self, forecast_id: str) -> Path:
        """A sealed forecast of what larger runs will measure."""
        return self.root / "forecasts" / f"{forecast_id}.json"

    def ladder(self, name: str, digest: str) -> Path:
        """The file of a ladder of one's own from which runs were planned; `digest` begins the hash of its content."""
        return self.root / "ladders" / f"{name.removesuffix('.py')}-{digest}.py"

    def claims(self, name: str) -> Path:
        """The claims of one part of a run, or of what else one process at a time makes."""
        return self.root / "claims" / name

    def meetings(self, key: str) -> Path:
        """Where the processes of one copy of a job find each other."""
        return self.root / "meetings" / key

    def record_of(self, reference: str) -> Path:
        """The file that says that a training run or a study is done, by its reference."""
        return self.root / reference / ("selection.json" if reference.startswith("glue/") else "done.json")

    @property
    def tracking(self) -> Path:
        """What was sent to trackers, and their own local files."""
        return self.root / "tracking"

    @property
    def submissions(self) -> Path:
        """One line for every job that was submitted."""
        return self.root / "submissions.jsonl"

    @property
    def starts(self) -> Path:
        """One line for every start of every part of a run."""
        return self.root / "starts.jsonl"

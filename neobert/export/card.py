"""Model cards of exports: the model, its data, scores, licence and limits.

Each score is given with its record, its data and the revision of the data.
"""

import json
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

from huggingface_hub import EvalResult, ModelCardData

from neobert.console import quantity
from neobert.errors import DamagedFile, MissingData
from neobert.executors.selection import best_of_grid
from neobert.export.checkpoint import PretrainedCheckpoint
from neobert.export.contrastive import ContrastiveCheckpoint
from neobert.files import matching
from neobert.identity import identity, neutral_values, plain
from neobert.kinds.glue import GlueStudy
from neobert.model.size import parameter_count
from neobert.own_code import SOURCES, sources_in
from neobert.recipe import FineTuning
from neobert.runs.layout import Layout
from neobert.runs.run_file import read_run_file

HUB = "hub:"
READINGS: Mapping[str, Any] = neutral_values(FineTuning)
"""The paper's text on the GLUE protocol where its code differs, by field."""

LIBRARIES = {"hf": "transformers", "sentence-transformers": "sentence-transformers"}
REGISTER = "import neobert.hub  # registers the classes with transformers\n"
ENCODE = """from sentence_transformers import SentenceTransformer

model = SentenceTransformer("FOLDER")
vectors = model.encode(["a sentence", "another one"])"""
PRETRAINED_USES = {
    "hf": """from transformers import AutoModelForMaskedLM, AutoTokenizer

tokenizer = AutoTokenizer.from_pretrained("FOLDER")
model = AutoModelForMaskedLM.from_pretrained("FOLDER")""",
    "sentence-transformers": ENCODE,
}
CONTRASTIVE_USES = {
    "hf": """from transformers import AutoModel, AutoTokenizer

tokenizer, model = AutoTokenizer.from_pretrained("FOLDER"), AutoModel.from_pretrained("FOLDER")
tokens = tokenizer(["a sentence", "another one"], padding=True, truncation=True, return_tensors="pt")
mask = tokens["attention_mask"].unsqueeze(-1)
vectors = (model(**tokens).last_hidden_state * mask).sum(1) / mask.sum(1)""",
    "sentence-transformers": f"{ENCODE}  # behind a prompt below: prompt_name=its name",
}
INSTRUCTED = {
    "nothing": "no text",
    "queries": "each query, and before no document,",
    "queries_and_documents": "each query and document",
}
INSTRUCTIONS = (
    "In training the instruction of a data set stood before {} as a first text of its own. The prompts below do the "
    "same as plain text, for data sets of pairs and for tasks of embeddings by the names that mteb looks prompts up "
    "under. One that is not among them has no instruction, or one that no text can stand for here."
)
NO_SCORES = "None are recorded for this step."
CITATION = """```bibtex
@article{lebreton2025neobert,
  title = {NeoBERT: A Next-Generation BERT},
  author = {Le Breton, Lola and Fournier, Quentin and Morris, John Xavier and El Mezouar, Mariam and Chandar, Sarath},
  journal = {arXiv preprint arXiv:2502.19587},
  year = {2025}
}
```"""


@dataclass(frozen=True)
class Score:
    """One score. `origin` is the identity of its data, as in records: synthetic:…, directory:… or hub:….

    task: the hub's name of the task; dataset: our name of the data set; configuration: the part of the data set.
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
        """Repository and revision on the hub; None for data from elsewhere or from several repositories."""
        name, _, revision = self.origin.removeprefix(HUB).rpartition("@")
        return (name, revision) if self.origin.startswith(HUB) and name and "@" not in name else None

    def result(self) -> EvalResult:
        """Return the score as the hub's model cards have it."""
        name, revision = self.repository or (self.origin, None)
        return EvalResult(
            task_type=self.task,
            dataset_type=name,
            dataset_name=f"{self.dataset} {self.configuration} ({self.origin})".replace("  ", " "),
            dataset_config=self.configuration or self.dataset,
            dataset_split=self.split,
            dataset_revision=revision,
            metric_type=self.metric,
            metric_value=self.value,
            metric_name=f"{self.metric}, {self.notes}",
        )


def scores_of(checkpoint: PretrainedCheckpoint) -> list[Score]:
    """Return the recorded held-out losses, and the best score of each GLUE task's grid; empty for earlier steps."""
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
    return heldout + glue_scores(checkpoint.layout, checkpoint.run_file.id)


def glue_scores(layout: Layout, weights: str) -> list[Score]:
    """Return the best score of each task's grid, from closed studies on the weights of a run under one reading of the
    protocol.

    Several variants may share weights and differ in protocol. The paper's protocol is used, otherwise the one with most
    trials, which the notes name. For each task, the grid with most trials is used; if there is none, the largest
    search.
    """
    grids: defaultdict[str, defaultdict[str, list[GlueStudy]]] = defaultdict(lambda: defaultdict(list))
    for path in matching(layout.root, "glue/*/studies/*/selection.json"):
        study = _study_in(path.parent)
        if study is not None and study.weights == weights and study.own_task is None:
            values = {field: getattr(study.protocol, field) for field in READINGS}
            differing = [f"{field} {value}" for field, value in values.items() if value != READINGS[field]]
            grids[", ".join(differing)][_grid(layout, study)].append(study)
    reading = "" if "" in grids else max(grids, key=lambda one: (_trials(chain(*grids[one].values())), one), default="")
    ordered = sorted(grids[reading].values(), key=lambda studies: (studies[0].search is None, _trials(studies)))
    by_task = {studies[0].task: studies for studies in ordered}
    scores = (_best_of_grid(layout, by_task[task], reading) for task in sorted(by_task))
    return [score for score in scores if score is not None]


def _study_in(folder: Path) -> GlueStudy | None:
    try:
        return read_run_file(folder).specification(GlueStudy)
    except (MissingData, DamagedFile):  # of another version; scores of other studies are not lost for it
        return None


def _grid(layout: Layout, study: GlueStudy) -> str:
    """Return what the seeds of a grid share: all but the seed, also of the study that they start from."""
    start = study.starts_from
    before = _study_in(layout.study(start.task, start.study)) if start.task and start.study else None
    known = start.study if before is None else _grid(layout, before)
    return identity({**plain(study), "seed": None, "starts_from": {**plain(start), "study": known}})


def _trials(studies: Iterable[GlueStudy]) -> int:
    return sum(study.total for study in studies)


def _best_of_grid(layout: Layout, studies: Sequence[GlueStudy], reading: str) -> Score | None:
    """Return the mean over seeds at the best point, or None if no trial has a score, as with constant predictions."""
    best, task = best_of_grid(layout, studies), studies[0].about
    if best is None:
        return None
    metrics = sorted(task.metric_on(metric, split) for metric in task.metrics for split in task.validation_splits)
    grids, search = [grid for study in studies for grid in study.grids(layout)], studies[0].search
    count = len(grids[0].points)
    points = f"{count} grid points" if count > 1 else "one grid point"
    if search is not None:
        points = f"{search.trials} points of a search ({search.sampler}, pruner {search.pruner})"
    seeds = f", mean of {len(best.by_seed)} seeds" if len(best.by_seed) > 1 else ""
    ids = ", ".join(grid.trial_id(best.point) for grid in grids if grid.seed in best.by_seed)
    return Score(
        task="text-classification",
        dataset="glue",
        configuration=task.name,
        split="validation",
        origin=studies[0].task_origin,
        metric=metrics[0] if len(metrics) == 1 else f"mean of {' and '.join(metrics)}",
        value=best.mean,
        notes=f"best of {points}{seeds}, {f'{reading}, ' if reading else ''}record {ids}",
    )


def pretrained_card(checkpoint: PretrainedCheckpoint, target: str, parity: dict[str, float], with_code: bool) -> str:
    """Return the README.md of an export for `target`, with the hub's metadata at its head.

    with_code: whether the export contains the model's code.
    """
    run, labels, record = checkpoint.run, checkpoint.run_file.labels, checkpoint.record
    name = words(labels.get("variants", [])) or checkpoint.run_file.id
    scores = scores_of(checkpoint)
    metadata = ModelCardData(
        model_name=name,
        library_name=LIBRARIES[target],
        license="mit",
        language="en",
        pipeline_tag="sentence-similarity" if target == "sentence-transformers" else "fill-mask",
        tags=["neobert", "encoder", "ablation"],
        eval_results=[score.result() for score in scores] or None,
    )
    use = PRETRAINED_USES[target]
    sections = {"Use": f"```python\n{REGISTER}{use}\n```"}
    if with_code:
        trusting = use.replace('"FOLDER"', '"FOLDER", trust_remote_code=True')
        sections["Use without the package"] = f"It needs torch and pydantic too.\n\n```python\n{trusting}\n```"
    if own := sources_in(run.recipe.model):
        trusted = 'from neobert.own_code import trust_folder\n\ntrust_folder("FOLDER")'
        sections["Own code"] = (
            f"The model needs {words(list(own))}, a user's own code, which is in `{SOURCES}`. If this package is "
            f"installed, trust it before loading; it runs with your permissions.\n\n```python\n{trusted}\n```"
        )
    stage = run.recipe.stages[-1]
    before = sum(earlier.tokens for earlier in run.recipe.stages[:-1])
    facts = {
        "run": checkpoint.run_file.id,
        "scale": words([labels.get("scale", "not recorded")]),
        "parameters": f"{parameter_count(run.recipe.model, run.context).total:,}",
        "context": f"{run.context} tokens",
        "data": f"{run.recipe.data.corpus} ({words([run.corpus_origin])})",
        "tokenizer": f"{run.recipe.data.tokenizer} ({words([run.tokenizer_origin])})",
        "token slots read": quantity(before + stage.tokens_per_step * checkpoint.step),
    }
    if record is not None:
        facts["real tokens of this stage"] = quantity(record["real_tokens"])
        facts["GPU-hours of this stage"] = f"{record['gpu_hours']:.2f}"
    sections["Model"] = table_of(facts)
    if labels.get("parent"):
        changes = {words([path]): f"{words([old])} → {words([new])}" for path, (old, new) in labels["delta"].items()}
        sections[f"Changes against {words([labels['parent']])}"] = table_of(changes)
    reach = (
        f"Sequences beyond {run.context} tokens are refused."
        if run.position_table
        else f"It was trained on at most {run.context} tokens; longer sequences are read with a warning."
    )
    sections |= {
        "Scores": _score_table(scores),
        "Recipe": f"```json\n{json.dumps(plain(run.recipe), indent=1)}\n```",
        "Limits": "English text only; it reproduces the biases of its corpus, and generates no text. "
        f"{reach}{_unfinished(record, stage.steps)}",
        "Parity": f"Measured against the training engine at export: {_parity_text(parity)}.",
        "Licence": "MIT for these files, as the harness; the texts that it was trained on keep their own terms.",
    }
    introduction = "An encoder of the ablation study from BERT to NeoBERT, exported by the harness that trained it."
    return _card(metadata, f"{name}, step {checkpoint.step:,}", introduction, sections)


def contrastive_card(checkpoint: ContrastiveCheckpoint, target: str, parity: dict[str, float]) -> str:
    """Return the README.md of an export for `target`, with the hub's metadata at its head."""
    run, labels, record = checkpoint.run, checkpoint.run_file.labels, checkpoint.record
    encoder = words([labels["model"]] if "model" in labels else labels.get("variants", [])) or checkpoint.run_file.id
    own = not run.is_external
    metadata = ModelCardData(
        library_name=LIBRARIES[target],
        license="mit" if own else None,
        pipeline_tag="sentence-similarity",
        tags=["neobert", "sentence-transformers", "feature-extraction"],
    )
    facts = {
        "run": checkpoint.run_file.id,
        "encoder that it started from": f"{encoder} ({run.weights})",
        "scale": words([labels.get("scale", "not recorded")]),
        "parameters": f"{sum(weight.numel() for weight in checkpoint.encoder.parameters()):,}",
        "texts": f"cut to {run.max_tokens} tokens",
        "tokenizer": words([run.tokenizer_origin]),
        **{f"pairs {words([pairs.name])}": words([pairs.origin]) for pairs in run.sets},
    }
    scores = NO_SCORES
    if record is not None:
        accuracy = record["scores"]["heldout_accuracy"]
        scores = table_of(
            {
                f"held-out pairs of {words([name])}": f"loss {loss:.4f}, own document found by {accuracy[name]:.1%} of "
                "queries"
                for name, loss in record["scores"]["heldout_loss"].items()
            }
        )
    whose = "MIT for these files, as the harness" if own else "That of the encoder that it started from"
    use = f"{REGISTER if own else ''}{CONTRASTIVE_USES[target]}"
    sections = {
        "Use": f"```python\n{use}\n```",
        "Model": table_of(facts),
        "Instructions": f"{INSTRUCTIONS.format(INSTRUCTED[run.instructed])}\n\n"
        f"```json\n{json.dumps(checkpoint.prompts, indent=1)}\n```",
        "Scores": scores,
        "Protocol": f"```json\n{json.dumps(plain(run.protocol), indent=1)}\n```",
        "Limits": f"Texts beyond {run.max_tokens} tokens are cut. It reproduces the biases of its corpora and pairs."
        f"{_unfinished(record, run.protocol.steps)}",
        "Parity": f"Measured against the run at export: {_parity_text(parity)}.",
        "Licence": f"{whose}; the texts that it was trained on keep their own terms.",
    }
    title = words([f"{encoder}, contrastive fine-tuning"])
    introduction = "A text encoder: the mean of its hidden states over all tokens, compared by cosine."
    return _card(metadata, f"{title}, step {checkpoint.step:,}", introduction, sections)


def _card(metadata: ModelCardData, title: str, introduction: str, sections: Mapping[str, str]) -> str:
    body = "".join(f"## {name}\n\n{text}\n\n" for name, text in sections.items())
    return f"---\n{metadata.to_yaml()}\n---\n\n# {title}\n\n{introduction}\n\n{body}## Citation\n\n{CITATION}\n"


def _unfinished(record: object, steps: int) -> str:
    return "" if record else f" This is a checkpoint on the way, of {steps} steps."


def _parity_text(parity: Mapping[str, float]) -> str:
    return ", ".join(f"{what} within {deviation:.1e}" for what, deviation in parity.items())


def _score_table(scores: Sequence[Score]) -> str:
    if not scores:
        return NO_SCORES
    lines = ["| | data | metric | value | |", "|---|---|---|---|---|"]
    for score in scores:
        name = f"{score.dataset}/{score.configuration}".rstrip("/")
        cells = (name, score.origin, score.metric, f"{score.value:.4f}", score.notes)
        lines.append(f"| {' | '.join(words([cell]) for cell in cells)} |")
    return "\n".join(lines)


def table_of(rows: Mapping[str, str]) -> str:
    """Return a table of names and values as Markdown."""
    return "\n".join(["| | |", "|---|---|", *(f"| {name} | {value} |" for name, value in rows.items())])


def words(values: Sequence[Any]) -> str:
    """Join labels as plain text without markup."""
    return ", ".join(re.sub(r"[^\w ,.:=@/+-]", "", str(value)) for value in values)

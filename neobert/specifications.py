"""Specifications of the units of work: all that decides a result, its identity, and its run.json. Torch-free."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import NonNegativeInt, PositiveInt, ValidationError, field_validator, model_validator

from neobert.embeddings.specification import EXTERNAL_PREFIX, ContrastiveRun
from neobert.embeddings.suite_specification import EmbeddingEvaluation
from neobert.errors import DamagedFile, MissingData
from neobert.files import publish_once, replace_file
from neobert.identity import NUMERICS, Neutral, chosen, decisive, identity, plain
from neobert.layout import Layout
from neobert.recipe import FineTuning, Point, Pretraining, Value
from neobert.records import provenance, read_sealed, sealed

PRETRAINING_MECHANISMS = ("tokenization", "batching", "masking", "model", "initialization", "optimization")
GLUE_MECHANISMS = ("tokenization", "model", "finetuning", "metrics")
EXECUTION = "execution.json"


class Source(Value):
    """Where the bytes come from: a name or folder that `open_source` understands, how much synthetic text, and which
    files or folders hold texts that no pair may share."""

    name: str
    synthetic_documents: PositiveInt
    unseen: tuple[str, ...] = ()


EngineWord = Literal["single", "ddp", "zero1", "zero2"]
HeldoutWord = Literal["own", "all"]
CompileWord = Literal["auto", "on", "off"]


class Execution(Value):
    """Where and how fast a unit runs; nothing in here decides a result.

    `engine` says how processes share a model: not at all (single), each with a whole copy (ddp), or with the state of
    the optimizer (zero1) and the gradients too (zero2) split between them. With one process all of them are the same.
    `compile` says whether models are compiled; auto does where that earns itself back. Of `trace_steps` steps behind
    the first few a trace is written. `heldout` says on which corpora of the source the held-out loss is measured, and
    `heldout_context` in which context (tokens) beside each run's own, so that runs of other contexts can be compared.
    """

    threads: PositiveInt
    processes: PositiveInt
    micro_batch_tokens: PositiveInt
    checkpoint_interval_steps: PositiveInt
    engine: EngineWord = "ddp"
    compile: CompileWord = "auto"
    trace_steps: NonNegativeInt = 0
    heldout: HeldoutWord = "own"
    heldout_context: PositiveInt | None = None

    @model_validator(mode="after")
    def _engine_serves_all_processes(self) -> Self:
        if self.engine == "single" and self.processes > 1:
            raise ValueError(
                f"engine 'single' trains in one process, not in {self.processes}: choose ddp, zero1 or zero2, "
                "or give the run one process"
            )
        return self

    def with_processes(self, processes: int) -> "Execution":
        """The same with another number of processes.

        Raises:
            ValueError: the engine cannot serve so many.
        """
        return Execution.model_validate(plain(self) | {"processes": processes})


class PretrainingRun(Value):
    """One stage of pre-training. `recipe.stages` ends with this stage; earlier ones are in `previous`.

    `position_table` is the size of a learned position table in tokens (the longest context of *all* stages of the
    variant), None with rotary positions, where later stages decide nothing about earlier ones.
    """

    recipe: Pretraining
    previous: str | None
    position_table: PositiveInt | None
    corpus_origin: str
    tokenizer_origin: str

    @property
    def stage(self) -> int:
        """Which stage this is, from 0."""
        return len(self.recipe.stages) - 1

    @property
    def id(self) -> str:
        """The run's name."""
        return self.id_under(NUMERICS)

    def id_under(self, numerics: Mapping[str, int]) -> str:
        """The run's name under the numerics versions of another time."""
        versions = chosen(numerics, PRETRAINING_MECHANISMS)
        return identity({"kind": "pretraining", "run": self, "numerics": versions})

    @property
    def context(self) -> int:
        """Tokens that the model is built for."""
        return self.position_table or self.recipe.longest_context

    @property
    def data_id(self) -> str:
        """The name of the tokenised corpus."""
        return data_identity(self.recipe.data.corpus, self.corpus_origin, self.tokenizer_origin)


class Start(Value):
    """The weights a fine-tuning trial starts from: the pre-trained ones, or the best trial of another task's study."""

    kind: Literal["pretraining", "study"]
    task: str | None
    study: str | None
    rule: str | None
    reason: str | None

    @property
    def name(self) -> str:
        """One word for records: "pretraining" or the task."""
        return self.task or "pretraining"


class GlueStudy(Value):
    """A grid of fine-tuning trials of one task on one pre-trained model with one seed.

    `weights` is the id of a pre-training run, or of a model from elsewhere (`neobert.external`). `pruning` is None;
    earlier versions could prune a grid, whose trials then depend on each other: such a study is refused.
    """

    task: str
    weights: str
    stage: NonNegativeInt
    context: PositiveInt
    protocol: FineTuning
    points: tuple[Point, ...]
    seed: NonNegativeInt
    starts_from: Start
    task_origin: str
    tokenizer_origin: str
    pruning: Annotated[None, Neutral(None)] = None

    @field_validator("pruning", mode="before")
    @classmethod
    def _is_whole(cls, pruning: Any) -> None:
        if pruning is not None:
            raise ValueError("the study was made with --prune, which this version no longer has")

    @property
    def id(self) -> str:
        """The study's name."""
        return self.id_under(NUMERICS)

    def id_under(self, numerics: Mapping[str, int]) -> str:
        """The study's name under the numerics versions of another time."""
        return identity({"kind": "glue_study", "study": self, "numerics": chosen(numerics, GLUE_MECHANISMS)})

    @property
    def is_external(self) -> bool:
        """Whether the model was pre-trained elsewhere."""
        return self.weights.startswith(EXTERNAL_PREFIX)

    @property
    def shown_name(self) -> str:
        """How people find the study among many: task, weights, seed, and the name that decides."""
        return f"{self.task} on {self.weights}, seed {self.seed} ({self.id})"

    def trial_id(self, point: Point) -> str:
        """A trial's name: it does not depend on which other points the grid has, so grids share trials."""
        trial = {key: value for key, value in decisive(self).items() if key != "points"}
        numerics = chosen(NUMERICS, GLUE_MECHANISMS)
        return identity({"kind": "glue", "trial": trial, "point": point, "numerics": numerics})


def data_identity(corpus: str, corpus_origin: str, tokenizer_origin: str) -> str:
    """The name of a corpus in a tokenizer's tokens. Both corpora of a source may have one origin."""
    numerics = chosen(NUMERICS, ("tokenization",))
    return identity({"corpus": corpus, "origin": corpus_origin, "tokenizer": tokenizer_origin, "numerics": numerics})


RunKind = Literal["pretraining", "glue_study", "contrastive", "mteb"]


class RunFile(Value):
    """What run.json holds: enough to run the unit alone. `numerics` are the versions that named it."""

    kind: RunKind
    id: str
    numerics: dict[str, int]
    pretraining: PretrainingRun | None
    study: GlueStudy | None
    contrastive: ContrastiveRun | None = None
    mteb: EmbeddingEvaluation | None = None
    source: Source
    execution: Execution
    labels: dict[str, Any]

    @property
    def run(self) -> "Run":
        """The specification of whichever kind it is."""
        run = self.pretraining or self.study or self.contrastive or self.mteb
        assert run is not None, self.id
        return run

    def require_own_name(self, folder: Path) -> None:
        """Hold the specification against the name that its folder and its results have.

        Raises:
            DamagedFile: it was changed, or this version computes something else under that name.
        """
        if self.run.id == self.id == folder.name:
            return
        if self.run.id_under(self.numerics) == folder.name:
            changed = ", ".join(name for name, version in NUMERICS.items() if self.numerics.get(name) != version)
            raise DamagedFile(
                f"{folder / 'run.json'} was planned by a version with other numerics ({changed} changed since): run "
                "the command again, which plans it under a new name"
            )
        raise DamagedFile(
            f"{folder / 'run.json'} describes {self.run.id} and not {folder.name}: it was changed or moved; restore "
            "it, or move the folder away and run the command again"
        )


Run = PretrainingRun | GlueStudy | ContrastiveRun | EmbeddingEvaluation


def run_folder(layout: Layout, run: Run) -> Path:
    """Where a run, study or evaluation lies."""
    if isinstance(run, GlueStudy):
        return layout.study(run.task, run.id)
    if isinstance(run, EmbeddingEvaluation):
        return layout.embedding_evaluation(run.id)
    return layout.pretraining(run.id) if isinstance(run, PretrainingRun) else layout.contrastive(run.id)


def write_run_file(layout: Layout, run: Run, source: Source, execution: Execution, labels: dict[str, Any]) -> Path:
    """Write run.json before anything runs; one that is there already stays. Returns its folder.

    Execution is not part of a result: where it differs from what the folder says, the new one stands in execution.json.
    """
    content = RunFile(
        kind=_kind(run),
        id=run.id,
        numerics=NUMERICS,
        pretraining=run if isinstance(run, PretrainingRun) else None,
        study=run if isinstance(run, GlueStudy) else None,
        contrastive=run if isinstance(run, ContrastiveRun) else None,
        mteb=run if isinstance(run, EmbeddingEvaluation) else None,
        source=source,
        execution=execution,
        labels=labels,
    )
    folder = run_folder(layout, run)
    path = folder / "run.json"
    if not path.exists():
        publish_once(path, sealed({**plain(content), "provenance": provenance()}))
    if read_run_file(folder).execution != execution:
        replace_file(folder / EXECUTION, sealed(plain(execution)))
    return folder


def _kind(run: Run) -> RunKind:
    if isinstance(run, GlueStudy):
        return "glue_study"
    if isinstance(run, EmbeddingEvaluation):
        return "mteb"
    return "pretraining" if isinstance(run, PretrainingRun) else "contrastive"


def read_checked_run_file(folder: Path) -> RunFile:
    """What run.json says of work that is about to be done, held against the name under which it will be published.

    Raises:
        MissingData: there is no run.json.
        DamagedFile: it is torn, was changed, or this version computes something else under that name.
    """
    run_file = read_run_file(folder)
    run_file.require_own_name(folder)
    return run_file


def read_run_file(folder: Path) -> RunFile:
    """What `write_run_file` wrote, with the newest execution.

    Raises:
        MissingData: there is no run.json.
        DamagedFile: it is torn or was written by another version.
    """
    path = folder / "run.json"
    if not path.exists():
        raise MissingData(f"{folder} holds no run.json: start the run with ablations/run.py")
    content = read_sealed(path)
    newest = folder / EXECUTION
    if newest.exists():
        execution = read_sealed(newest)
        content["execution"] = {name: value for name, value in execution.items() if name in Execution.model_fields}
    try:
        return RunFile.read({name: value for name, value in content.items() if name not in ("schema", "provenance")})
    except ValidationError as error:
        causes = "; ".join(f"{'.'.join(map(str, each['loc']))}: {each['msg']}" for each in error.errors())
        raise DamagedFile(f"{path} does not describe a run of this version: {causes}") from error

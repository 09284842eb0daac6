"""The plan of a selection of variants: every unit with its id, folder and state. Reads only; needs no torch."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from ablations.designs import known_names, named
from ablations.embeddings import EVERYTHING, EmbeddingChoice, embedding_runs
from ablations.labels import change_label
from ablations.ladder import variants
from ablations.modification import Embedding, Recipe
from ablations.runs import glue_studies, measured_checkpoints, pretraining_runs
from ablations.scales import Scale, Vocabulary, scaled
from ablations.variant import Variant, prove_scaled
from neobert.data.sources import Source
from neobert.errors import did_you_mean
from neobert.identity import difference
from neobert.model.size import parameter_count, training_flops_per_token
from neobert.runs.index import State, state_of
from neobert.runs.layout import Layout
from neobert.runs.specifications import ContrastiveRun, EmbeddingEvaluation, GlueStudy, PretrainingRun, Run, run_folder

Part = Literal["pretrain", "glue", "contrastive", "mteb", "perplexity"]
PARTS: tuple[Part, ...] = ("pretrain", "glue")


@dataclass(frozen=True)
class PlannedUnit:
    """A stage of pre-training, a GLUE study, a run of contrastive fine-tuning or an evaluation on tasks of embeddings,
    where it lies and how far it is."""

    run: Run
    folder: Path
    state: State

    @property
    def kind(self) -> str:
        """The word for it in listings."""
        if isinstance(self.run, GlueStudy):
            return f"glue {self.run.task}"
        if isinstance(self.run, ContrastiveRun):
            return "contrastive"
        if isinstance(self.run, EmbeddingEvaluation):
            return f"mteb {self.run.encoder.protocol}"
        return f"pretraining stage {self.run.stage + 1}"


@dataclass(frozen=True)
class Row:
    """One variant with one seed. Recipes are scaled; `skipped` names tasks without data and why."""

    variant: Variant
    seed: int
    scale: Scale
    recipe: Recipe
    parent_recipe: Recipe | None
    units: tuple[PlannedUnit, ...]
    skipped: dict[str, str]

    @property
    def title(self) -> str:
        """What the variant changes at this scale and on these data."""
        trained = [unit.run for unit in self.units if isinstance(unit.run, PretrainingRun)]
        origins = {"corpus": trained[0].corpus_origin, "tokenizer": trained[0].tokenizer_origin} if trained else {}
        return change_label(self.variant, self.recipe, self.parent_recipe, origins)

    @property
    def parameters(self) -> int:
        """Parameters of the pre-training model."""
        return parameter_count(self.recipe.pretraining.model, self.recipe.pretraining.longest_context).total

    @property
    def flops(self) -> float:
        """Floating-point operations of pre-training, if every slot held a token."""
        model, rate = self.recipe.pretraining.model, self.recipe.pretraining.masking.rate
        stages = self.recipe.pretraining.stages
        return float(sum(training_flops_per_token(model, stage.context, rate) * stage.tokens for stage in stages))

    @property
    def delta(self) -> dict[str, tuple[Any, Any]]:
        """What differs from the parent at this scale: {dotted path: (before, after)}."""
        return {} if self.parent_recipe is None else difference(self.parent_recipe, self.recipe)

    def summary(self) -> dict[str, Any]:
        """The row of `--dry-run --json`."""
        return {
            "variant": self.variant.name,
            "seed": self.seed,
            "scale": self.scale,
            "parameters": self.parameters,
            "tokens": self.recipe.pretraining.tokens,
            "flops": self.flops,
            "delta": {path: list(change) for path, change in self.delta.items()},
            "stages": [
                {"kind": unit.kind, "id": unit.run.id, "state": unit.state, "folder": str(unit.folder)}
                for unit in self.units
            ],
            "skipped": self.skipped,
        }


def chosen_variants(names: Sequence[str]) -> list[Variant]:
    """Variants by name, `all` (the ladder) or a range such as M0..M5, each once, in the order of the ladder; those of
    designs (M9-norm, F:positions+norm) behind them.

    Raises:
        ValueError: a name is unknown.
    """
    known = variants()
    on_ladder = [name for name in known if "@" not in name]
    chosen: set[str] = set()
    of_designs: dict[str, Variant] = {}
    for name in names:
        first, dots, last = name.partition("..")
        if name == "all":
            chosen.update(on_ladder)
        elif dots:
            ends = [on_ladder.index(_known(end, on_ladder)) for end in (first, last)]
            if ends[0] > ends[1]:
                raise ValueError(
                    f"{name} names no variant, as {last} comes before {first}: did you mean {last}..{first}?"
                )
            chosen.update(on_ladder[ends[0] : ends[1] + 1])
        elif name not in known and (variant := named(name)):
            of_designs[name] = variant
        else:
            chosen.add(_known(name, [*known, *known_names()]))
    return [*(variant for name, variant in known.items() if name in chosen), *of_designs.values()]


def _known(name: str, names: Sequence[str]) -> str:
    if name not in names:
        raise ValueError(f"there is no variant {name!r}: {did_you_mean(name, names)} (all: run.py --list)")
    return name


def vocabulary_of(source: Source) -> Vocabulary:
    """Whether a source trains its tokenizers or brings published ones."""
    return "trained" if source.trains_tokenizers else "published"


def scaled_variant(variant: Variant, scale: Scale, vocabulary: Vocabulary) -> tuple[Recipe, Recipe | None]:
    """The variant's recipe and its parent's at a scale, proven to differ as declared."""
    recipe = scaled(variant.recipe, scale, vocabulary)
    if variant.parent is None:
        return recipe, None
    parent = scaled(variant.parent.recipe, scale, vocabulary)
    prove_scaled(variant.name, parent, recipe, variant)
    return recipe, parent


def plan(
    chosen: Sequence[Variant],
    seeds: Sequence[int],
    scale: Scale,
    source: Source,
    layout: Layout,
    parts: Sequence[Part] = PARTS,
    finetuning_seeds: Sequence[int] | None = None,
    choice: EmbeddingChoice = EVERYTHING,
) -> list[Row]:
    """One row a variant and seed. Never fails for missing data but of what `choice` names and of what mteb reads.

    `finetuning_seeds` are those of fine-tuning; None stands for the seed of pre-training.
    `choice` says which pairs and tasks of embeddings.

    Raises:
        MissingData, ValueError: as `embedding_runs`.
    """
    rows = []
    for variant in chosen:
        recipe, parent = scaled_variant(variant, scale, vocabulary_of(source))
        for seed in seeds:
            runs = pretraining_runs(recipe.pretraining, seed, source)
            units: list[Run] = [*runs]
            skipped: dict[str, str] = {}
            if "glue" in parts:
                skipped.update({task: reason for task, reason in source.tasks().items() if reason})
                for finetuning_seed in finetuning_seeds or [seed]:
                    checkpoints = measured_checkpoints(recipe, runs, finetuning_seed)
                    units += [study for each in checkpoints for study in glue_studies(each, source)]
            embedded, reasons = embedding_runs(
                runs[-1], recipe.embedding, finetuning_seeds or [seed], source, parts, choice
            )
            units += embedded
            skipped |= reasons
            planned = tuple(PlannedUnit(run, run_folder(layout, run), state_of(layout, run)) for run in units)
            rows.append(Row(variant, seed, scale, recipe, parent, planned, skipped))
    return rows


def sharing(recipe: Recipe, scale: Scale, vocabulary: Vocabulary, run: Run | None = None) -> list[str]:
    """The ladder's variants with the same pre-training at a scale, as M9 and M10 share their weights; those of a run of
    embeddings also have its protocol."""
    others = ((name, scaled(variant.recipe, scale, vocabulary)) for name, variant in variants().items())
    wanted = decisive_for(run, recipe.embedding)
    return [
        name
        for name, other in others
        if other.pretraining == recipe.pretraining and decisive_for(run, other.embedding) == wanted
    ]


def decisive_for(run: Run | None, protocol: Embedding) -> tuple[Any, ...]:
    """What a run takes from a protocol of embeddings."""
    if isinstance(run, ContrastiveRun):
        return protocol.contrastive, protocol.pairs
    if isinstance(run, EmbeddingEvaluation) and run.encoder.protocol == "contrastive":
        return (protocol,)
    return (protocol.precision,) if isinstance(run, EmbeddingEvaluation) else ()

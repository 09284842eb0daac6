"""What mteb_suite.py runs: an encoder's contrastive fine-tuning, where it is not done, and its evaluation."""

import argparse
from pathlib import Path

from ablations.flags import trust_of
from ablations.plan import EmbeddingChoice, chosen_variants, plan, plan_embeddings_of, wanted_tasks
from ablations.prefetch import folder_or_repository
from neobert.console import logs
from neobert.data.sources import Source
from neobert.embeddings.sentence_modules import read_sentence_modules
from neobert.errors import MissingData
from neobert.external import MODULES, ExternalModel, adopt
from neobert.runs.layout import Layout
from neobert.runs.specifications import EmbeddingEvaluation, PretrainingRun
from sweeps.planning import Sweep


def choice_of(options: argparse.Namespace) -> EmbeddingChoice:
    """What the flags ask for."""
    return EmbeddingChoice(options.pairs, options.tasks, options.categories, options.zero_shot)


def evaluations_of(sweep: Sweep) -> list[EmbeddingEvaluation]:
    """The evaluations of a plan."""
    return [unit.run for unit in sweep.plan.units if isinstance(unit.run, EmbeddingEvaluation)]


def evaluation_of_model(options: argparse.Namespace, layout: Layout, source: Source) -> Sweep:
    """The evaluation of `--model`, after its contrastive fine-tuning unless `--zero-shot`.

    Raises:
        MissingData, ValueError: the model is not there or no encoder, or as `embedding_runs`.
    """
    if options.pretraining_seed:
        raise ValueError("--pretraining-seed belongs to a variant: leave it out with --model")
    choice = choice_of(options)
    wanted_tasks(source, choice.tasks, choice.categories)  # a wrong name is told before a model is loaded
    model = adopt(layout, folder_or_repository(options.model, options.data), trust_of(options))
    seeds = options.seed or [0]
    baseline = plan_embeddings_of(model, options.scale, seeds, source, layout, choice, protocol=options.protocol)
    logs().print(pooling_remark(model, is_zero_shot=options.zero_shot), markup=False)
    return Sweep(f"{model.name} ({model.id}), {options.scale} scale", baseline)


def pooling_remark(model: ExternalModel, *, is_zero_shot: bool) -> str:
    """How vectors are made of a model's hidden states."""
    mean = "the mean over all tokens is taken, as of every encoder here"
    if not (Path(model.folder) / MODULES).is_file():
        return f"{model.name} declares no pooling: {mean}"
    if not is_zero_shot:
        return f"{model.name} starts contrastive fine-tuning without its {MODULES}: {mean}"
    return f"{model.name} is measured as its {MODULES} says: {read_sentence_modules(Path(model.folder), model.name)}"


def evaluation_of_variant(options: argparse.Namespace, layout: Layout, source: Source, *, pretrains: bool) -> Sweep:
    """The evaluation of a variant's last checkpoint, after contrastive fine-tuning unless `--zero-shot`; its
    pre-training only where it may be run.

    Raises:
        MissingData: the variant is not pre-trained, or as `embedding_runs`.
    """
    if options.protocol:
        raise ValueError("--protocol is for --model: a variant has its own, so name M9@mteb-prompts and the like")
    (variant,) = chosen_variants([options.variant])
    (row,) = plan(
        [variant],
        [options.pretraining_seed],
        options.scale,
        source,
        layout,
        ["pretrain", "mteb"],
        finetuning_seeds=list(dict.fromkeys(options.seed or [])) or None,
        choice=choice_of(options),
    )
    unfinished = [unit for unit in row.units if isinstance(unit.run, PretrainingRun) and unit.state != "done"]
    if unfinished and not pretrains and not options.dry_run:
        command = f"python ablations/run.py --variant {variant.name} --scale {options.scale} --runs {options.runs}"
        raise MissingData(f"{variant.name} is not pre-trained ({unfinished[0].state}): run `{command}` first")
    return Sweep(f"{variant.name}, seed {row.seed}, {row.scale} scale", row)

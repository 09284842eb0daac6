"""`run.py --model`: contrastive fine-tuning of an encoder from elsewhere. Torch-free until a new model is looked at."""

import argparse
import json
from typing import Any

from ablations.execute import open_workplace, report_failures, send, work_here
from ablations.flags import refuse_execution_flags, trust_of, with_execution_flags
from ablations.plan import Baseline, EmbeddingChoice, PlannedUnit, plan_embeddings_of
from ablations.prefetch import LISTED, folder_or_repository, print_paper_models
from ablations.scales import execution_at
from ablations.submit import dispatch_of, place_of
from neobert.console import output, table
from neobert.errors import EXIT_DONE, EXIT_RUN_FAILED
from neobert.external import adopt
from neobert.runs.index import state_of
from neobert.runs.layout import Layout
from neobert.runs.records import is_published, read_record
from neobert.runs.specifications import ContrastiveRun

STAGES_OF_MODELS = ("contrastive",)
COLUMNS = ("model", "seed", "run", "state", "heldout_loss", "heldout_accuracy")


def run_model(options: argparse.Namespace) -> int:
    """The command with `--model`; returns its exit code.

    Raises:
        ValueError: a flag or stage does not go with a model, or the model is no encoder.
        MissingData: the model or a data set of pairs is not there.
    """
    if options.model == LISTED:
        print_paper_models(options.data or "synthetic")
        return EXIT_DONE
    _refuse_flags(options)
    execution = with_execution_flags(execution_at(options.scale), options)
    workplace = open_workplace(options, execution, options.without_texts_of or [])
    layout = workplace.layout
    model = adopt(layout, folder_or_repository(options.model, options.data), trust_of(options))
    choice = EmbeddingChoice(pairs=options.pairs)
    seeds, parts = options.seed or [0], STAGES_OF_MODELS
    planned = (model, options.scale, seeds, workplace.source, layout, choice, parts, options.protocol)
    baseline = plan_embeddings_of(*planned)
    if options.dry_run:
        print_outcome(layout, baseline, as_json=options.json)
        return EXIT_DONE
    if place_of(options) == "slurm":
        return send(workplace, baseline, *dispatch_of(options, layout, execution))
    runs = baseline.unfinished(layout)
    code = work_here(workplace, baseline, runs)
    print_outcome(layout, baseline, as_json=options.json)
    return report_failures(layout, runs) if code == EXIT_RUN_FAILED else code


def _refuse_flags(options: argparse.Namespace) -> None:
    for flag in ("variant", "design", "list", "gc", "cancel"):
        if vars(options)[flag]:
            raise ValueError(f"--model is an encoder from elsewhere, which --{flag} has no place for: name one of them")
    for stage in options.stages:
        if stage not in STAGES_OF_MODELS:
            raise ValueError(
                f"the stage {stage} is for variants: --model goes with --stages {' '.join(STAGES_OF_MODELS)} "
                "(others of a model: sweeps/glue_grid.py and sweeps/mteb_suite.py, each with --model)"
            )
    refuse_execution_flags(options)


def print_outcome(layout: Layout, baseline: Baseline, *, as_json: bool) -> None:
    """Each run with its state and, when it is done, what it makes of held-out pairs."""
    entries = [_entry(layout, baseline, unit) for unit in baseline.units]
    if as_json:
        print(json.dumps(entries, indent=1))
        return
    title = f"Contrastive fine-tuning of {baseline.model.name} ({baseline.model.id}), {baseline.scale} scale"
    cells = [[_mean(entry[column]) for column in COLUMNS] for entry in entries]
    output().print(table(title, COLUMNS, cells))


def _entry(layout: Layout, baseline: Baseline, unit: PlannedUnit) -> dict[str, Any]:
    assert isinstance(unit.run, ContrastiveRun)
    path = unit.folder / "done.json"
    scores = read_record(path)["scores"] if is_published(path) else {}
    return {
        "model": baseline.model.name,
        "weights": baseline.model.id,
        "seed": unit.run.protocol.seed,
        "run": unit.run.id,
        "state": state_of(layout, unit.run),
        "folder": str(unit.folder),
        "heldout_loss": scores.get("heldout_loss"),
        "heldout_accuracy": scores.get("heldout_accuracy"),
    }


def _mean(value: Any) -> Any:
    """The mean over data sets as people read it; anything else as it is."""
    return f"{sum(value.values()) / len(value):.3f}" if isinstance(value, dict) else value

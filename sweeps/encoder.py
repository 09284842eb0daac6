"""The encoder that a sweep measures: a variant's checkpoints, an external model, or the newest finished run."""

import argparse
import shlex
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from ablations.launch.flags import (
    DEFAULT_RUNS,
    MODEL_HELP,
    Flags,
    add_data_flags,
    add_place_flags,
    add_trust_flag,
    workspace_from,
)
from neobert.command_line import seed
from neobert.errors import MissingData
from neobert.files import is_there, matching

if TYPE_CHECKING:
    from ablations.launch.execute import Workspace
    from ablations.launch.request import Selection
    from ablations.plan import PlanRow
    from neobert.recipe import Grid


def add_encoder_flags(parser: argparse.ArgumentParser, shown: str) -> None:
    """Add the flags for the encoder, the seeds, the data and the place; `shown` is what a dry run prints."""
    add = parser.add_argument
    measured = parser.add_mutually_exclusive_group()
    variant = "a pre-trained variant (default: the newest finished run)"
    measured.add_argument("--variant", nargs=1, metavar="NAME", help=variant)
    measured.add_argument("--model", metavar="DIR_OR_ID", help=MODEL_HELP)
    seeds = "seeds of fine-tuning (default: that of pre-training)"
    add("--seed", dest="finetuning_seed", type=seed, nargs="+", action="extend", metavar="N", help=seeds)
    add("--pretraining-seed", dest="seed", type=seed, nargs=1, metavar="N", help="seed of pre-training (default: 0)")
    add_data_flags(parser)
    add_place_flags(parser, f"{shown} and their states,")
    add_trust_flag(parser)


def measure(flags: Flags, selection: "Selection", sweep: "Callable[[Workspace, bool], int]") -> int:
    """Call `sweep` with the workspace of the selected encoder; return the exit code.

    The second argument of `sweep` is True if it may have to pre-train the encoder.

    Raises:
        ValueError: flags contradict each other.
        MissingData: a folder is not there.
    """
    if selection.model is not None and any(selection.seeds):
        raise ValueError("--pretraining-seed belongs to a variant: leave it out with --model")
    if selection.model is not None or selection.variants:
        return sweep(workspace_from(flags, selection), False)
    for name, flag in {"scale": "scale", "data": "data", "seed": "pretraining-seed"}.items():
        if flags[name]:
            raise ValueError(f"--{flag} goes with --variant or --model: without either the last finished run sets it")
    found = _newest_run(selection)
    if found is None:
        found = replace(selection, variants=(selection.ladder.root.name,), data="synthetic")
        return sweep(workspace_from(flags, found), True)
    return sweep(workspace_from(flags, found), False)


def _newest_run(selection: "Selection") -> "Selection | None":
    """Return the selection with variant, scale, data and seed of the run that finished last; None if there is none:
    then the baseline of the ladder has to be pre-trained at its default scale.

    Raises:
        MissingData: there is no folder of runs.
        ValueError: the run is of another ladder, or of a scale that it had.
    """
    from neobert.console import logs
    from neobert.runs.run_file import read_run_file

    ladder, root = selection.ladder, selection.runs.resolve()
    if selection.runs != DEFAULT_RUNS and not is_there(root):
        raise MissingData(
            f"--runs {selection.runs} does not exist, so there is no finished run to sweep: name the folder that "
            "run.py filled, or a variant to pre-train there with `python ablations/run.py`"
        )
    finished = sorted(matching(root, "pretraining/*/done.json"), key=lambda path: path.stat().st_mtime)
    if not finished:
        said = f"{root} has no finished run: {ladder.root.name} is pre-trained at {selection.scale} scale first"
        logs().print(said, markup=False)
        return None
    run_file = read_run_file(finished[-1].parent)
    theirs = run_file.labels.get("ladder", "")
    if theirs != ladder.name:
        raise ValueError(
            f"{run_file.id}, the run that finished last, is of {f'the ladder {theirs}' if theirs else 'the paper'}: "
            "name that with --ladder, or a variant with --variant"
        )
    name, scale = run_file.labels["variants"][0], ladder.scale_named(run_file.labels["scale"])
    logs().print(f"on {name}, the run that finished last ({run_file.id})", markup=False)
    return replace(selection, variants=(name,), scale=scale, data=run_file.source.name, seeds=(run_file.run.seed,))


def encoder_row(
    workspace: "Workspace",
    stages: "Sequence[str]",
    *,
    pretrains: bool,
    grid: "Grid | None" = None,
) -> "PlanRow":
    """Plan the selected variant or external model, with another grid if given.

    A variant's pre-training must be done, except in a dry run or if the sweep `pretrains` it.

    Raises:
        MissingData, ValueError: as `plan` and `plan_model`; the variant is not pre-trained.
    """
    from ablations.names import at_scale, one_variant
    from ablations.plan import plan, plan_model

    its, ladder = workspace.selection, workspace.ladder
    if its.model is not None:
        model, seeds = workspace.external_model(), its.finetuning_seeds or [0]
        places = its.scale, workspace.source, workspace.layout
        return plan_model(ladder, model, seeds, *places, stages, grid=grid, choice=its.embedding)
    variant = at_scale(ladder, one_variant(ladder, its.variants[0]), its.scale)
    if grid is not None:
        recipe = variant.recipe.model_copy(update={"grid": grid})
        variant = replace(variant, recipe=recipe, parent=None, modifications=())
    (row,) = plan(
        ladder,
        [variant],
        its.seeds,
        its.scale,
        workspace.source,
        workspace.layout,
        ["pretraining", *stages],
        finetuning_seeds=list(dict.fromkeys(its.finetuning_seeds)) or None,
        choice=its.embedding,
    )
    states = {planned.run.id: planned.state for planned in row.planned}
    for stage in row.stages if not (pretrains or workspace.dry_run) else ():
        if states[stage.id] != "done":
            data, runs = (shlex.quote(str(value)) for value in (workspace.specification.name, its.runs))
            flags = f"--variant {row.name} --seed {row.seed} --scale {its.scale} --data {data}"
            flags += f" --stages pretraining --runs {runs}{ladder.flag}"
            command = f"python ablations/run.py {flags}"
            raise MissingData(f"{row.name} is not pre-trained ({states[stage.id]}): run `{command}` first")
    return row

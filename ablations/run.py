# PYTHON_ARGCOMPLETE_OK
"""Run variants of the ladder: pre-training, then the GLUE grid. The same command starts, resumes and retries.

python ablations/run.py --list                        the ladder: parents, changes, sources, states
python ablations/run.py --variant M7 --dry-run        what would run, with ids, sizes and states
python ablations/run.py --variant M0..M5 --seed 0 1   run what is missing, on this machine
python ablations/run.py --stages contrastive --model DIR     contrastive fine-tuning of an external encoder
python ablations/run.py --design leave-one-out --dry-run   M9, and M9 without each of its modifications
"""

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if __name__ == "__main__":  # a script's own folder would hide packages of the same names as its modules
    sys.path[0] = str(Path(__file__).resolve().parent.parent)

from ablations.launch.flags import (
    MODEL_HELP,
    add_benchmark_flag,
    add_common_flags,
    add_execution_flags,
    add_stages_flag,
    trusts_code,
)
from ablations.loading import on_ladder
from neobert.command_line import guarded, parser_from, seed
from neobert.errors import EXIT_DONE
from neobert.runs.kinds import STAGES_OF_VARIANTS

if TYPE_CHECKING:
    from ablations.ladders import Ladder
    from ablations.launch.execute import Workspace
    from ablations.plan import VariantRow
    from neobert.data.source import Source

MODEL_STAGES = ("contrastive",)
FLAGS_OF_STAGES = {
    "zero_shot": ("mteb",),
    "benchmark": ("mteb",),
    "pairs": ("contrastive", "mteb"),
    "without_texts_of": ("contrastive", "mteb"),
}
"""Flags that are only allowed with some stages."""
COMPANIONS = {"delete": "gc", "protocol": "model"}
"""Flags that are only allowed with another one."""


def build_parser() -> argparse.ArgumentParser:
    """Return the command's parser."""
    parser = parser_from("python ablations/run.py", __doc__)
    add = parser.add_argument
    add("--variant", nargs="+", action="extend", metavar="NAME", help="names, M0..M5, or all")
    design = "the last variant without each modification, or the baseline with each, instead of --variant"
    add("--design", choices=("leave-one-out", "add-one"), help=design)
    add("--protocol", metavar="VARIANT", help="with --model: protocol of this variant (default: the ladder's)")
    add("--seed", nargs="+", action="extend", type=seed, metavar="N", help="seeds; one run for each (default: 0)")
    add_stages_flag(
        parser,
        (*STAGES_OF_VARIANTS, "perplexity"),
        "which parts to run (default: pretraining glue). pretraining (or pretrain) is always included. mteb (Table 4) "
        "includes contrastive. readouts: held-out loss on all corpora, and BLiMP. perplexity: pseudo-perplexity by "
        "length (Figure 2)",
    )
    add("--pairs", nargs="+", action="extend", metavar="SET", help="data sets of pairs for contrastive (default: all)")
    add("--zero-shot", action="store_true", help="with mteb: measure encoders as they were pre-trained (Figure 4)")
    add_benchmark_flag(parser)
    add(
        "--without-texts-of",
        nargs="+",
        action="extend",
        metavar="PATH",
        help="leave out pairs that share a text with these parquet files or folders, ignoring case and punctuation",
    )
    mode = parser.add_mutually_exclusive_group().add_argument
    mode("--model", metavar="DIR_OR_ID", help=f"instead of variants: {MODEL_HELP}")
    mode("--list", action="store_true", help="print the ladder and stop")
    cancelled = "cancel the variants' live jobs (only of --scale, --data and --seed if given), and stop"
    mode("--cancel", action="store_true", help=cancelled)
    mode("--gc", action="store_true", help="print which checkpoints, data and code are not needed any more, and stop")
    add("--delete", action="store_true", help="with --gc: remove them")
    add_common_flags(parser, "plan")
    add_execution_flags(parser)
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; return its exit code (0 done, 1 a run failed, 2 refused, 3 missing data or run)."""
    parser = build_parser()
    options = parser.parse_args(arguments)
    given = {flag for flag, value in vars(options).items() if value}
    for flag, stages in FLAGS_OF_STAGES.items():
        if flag in given and not set(stages).intersection(options.stages):
            parser.error(f"--{flag.replace('_', '-')} goes with --stages … {' or '.join(stages)}")
    for flag, other in COMPANIONS.items():
        if flag in given and other not in given:
            parser.error(f"--{flag.replace('_', '-')} goes with --{other.replace('_', '-')}")
    if given >= {"cancel", "dry_run"}:
        parser.error("--cancel and --dry-run exclude each other: ablations/status.py shows the jobs of every run")
    if given >= {"variant", "design"}:
        parser.error("--variant and --design both choose variants: give one of them")
    if "cancel" in given and not given.intersection(("variant", "design")):
        parser.error("--cancel needs the variants whose jobs it cancels: name them with --variant (M7, M0..M5, all)")
    if not given.intersection((*MODES, "variant", "design")):
        parser.error("name variants with --variant (M7, M0..M5, all), --design or --model, or see them with --list")
    mode = next((mode for flag, mode in MODES.items() if flag in given), _run_variants)
    return guarded("run.py", on_ladder(options, mode), options.runs)


def _clean(options: argparse.Namespace, _ladder: "Ladder") -> int:
    from neobert.runs.cleanup import clean
    from neobert.runs.layout import Layout

    clean(Layout(options.runs.resolve()), delete=options.delete, as_json=options.json)
    return EXIT_DONE


def _cancel(options: argparse.Namespace, ladder: "Ladder") -> int:
    from ablations.launch.submit import cancel_jobs
    from ablations.names import chosen_variants, names_of_design
    from neobert.console import logs
    from neobert.runs.layout import Layout

    variants = [] if options.design else chosen_variants(ladder, options.variant)
    names = names_of_design(ladder, options.design) if options.design else [variant.name for variant in variants]
    jobs = cancel_jobs(ladder, options, Layout(options.runs.resolve()), set(names))
    if options.json:
        print(json.dumps(jobs))
    said = f"{len(jobs)} job(s) cancelled {' '.join(jobs)}; what they finished or saved stays"
    none = f"no matching job is running in {options.runs}: ablations/status.py shows all jobs"
    logs().print(said if jobs else none, markup=False)
    return EXIT_DONE


def _run_model(options: argparse.Namespace, ladder: "Ladder") -> int:
    from ablations.launch.execute import open_workspace, run_or_submit
    from ablations.launch.outcomes import print_model_outcome
    from ablations.paper_models import LISTED, print_paper_models
    from ablations.plan import plan_model
    from ablations.recipe_runs import EmbeddingChoice

    if options.model == LISTED:
        print_paper_models(options.data or "synthetic", as_json=options.json)
        return EXIT_DONE
    for flag in ("variant", "design"):
        if vars(options)[flag]:
            raise ValueError(f"--model cannot be combined with --{flag}")
    for stage in options.stages:
        if stage not in MODEL_STAGES:
            raise ValueError(
                f"the stage {stage} is for variants: --model goes with --stages {' '.join(MODEL_STAGES)} "
                "(others of a model: sweeps/glue_grid.py and sweeps/mteb_suite.py, each with --model)"
            )
    workspace = open_workspace(ladder, options)
    layout = workspace.layout
    row = plan_model(
        ladder,
        workspace.external_model(),
        options.seed or [0],
        options.scale,
        workspace.source,
        layout,
        options.stages,
        choice=EmbeddingChoice(pairs=options.pairs, protocol=options.protocol),
    )
    return run_or_submit(workspace, [row], lambda: print_model_outcome(layout, row, as_json=options.json))


def _planned(options: argparse.Namespace, ladder: "Ladder") -> "tuple[Workspace, list[VariantRow], list[str]]":
    """Open what the flags name and plan the chosen variants; the sentences are about variants of a design that are left
    out."""
    from ablations.launch.checks import require_heldout_context
    from ablations.launch.execute import open_workspace
    from ablations.names import chosen_variants, variants_of_design
    from ablations.plan import plan
    from ablations.recipe_runs import EmbeddingChoice
    from ablations.scaling import vocabulary_of

    trusts_code(options)
    workspace = open_workspace(ladder, options)
    layout, source = workspace.layout, workspace.source
    left_out: list[str] = []
    if options.design:
        chosen, left_out = variants_of_design(ladder, options.design, options.scale, vocabulary_of(source))
    else:
        chosen = chosen_variants(ladder, options.variant or list(ladder.variants))
    choice = EmbeddingChoice(pairs=options.pairs, benchmarks=options.benchmark, zero_shot=options.zero_shot)
    rows = plan(ladder, chosen, options.seed or [0], options.scale, source, layout, options.stages, choice=choice)
    require_heldout_context(options.heldout_context, rows)
    return workspace, rows, [f"left out: {sentence}" for sentence in left_out]


def _list_variants(options: argparse.Namespace, ladder: "Ladder") -> int:
    from ablations.launch.listing import print_ladder
    from ablations.recipe_runs import MissingTask

    beside = []
    try:
        _, rows, lines = _planned(options, ladder)
    except MissingTask as error:  # a ladder can be looked at before the data of its tasks are there
        options.stages = [stage for stage in options.stages if stage != "glue"]
        _, rows, lines = _planned(options, ladder)
        beside = [f"without fine-tuning: {error}"]
    print_ladder(rows, as_json=options.json)
    _print_beside(options, [*lines, *beside])
    return EXIT_DONE


def _run_variants(options: argparse.Namespace, ladder: "Ladder") -> int:
    from ablations.launch.execute import run_or_submit
    from ablations.launch.outcomes import print_outcome
    from neobert.console import logs

    workspace, rows, lines = _planned(options, ladder)
    if options.dry_run:
        return _show_plan(workspace, rows, lines)
    lines += dict.fromkeys(f"left out: {task}: {why}" for row in rows for task, why in row.skipped.items())
    for line in lines:
        logs().print(line, markup=False)
    return run_or_submit(workspace, rows, lambda: print_outcome(workspace.layout, rows, as_json=options.json))


def _print_beside(options: argparse.Namespace, lines: Sequence[str]) -> None:
    """Print lines; to stderr if stdout has JSON."""
    for line in lines:
        print(line, file=sys.stderr if options.json else sys.stdout)


def _show_plan(workspace: "Workspace", rows: "Sequence[VariantRow]", lines: Sequence[str]) -> int:
    """Print the plan, the batch files for SLURM and the lines; refuse stages that do not fit."""
    from ablations.launch.checks import corpus_lines, misfits, refuse, require_scorable_tasks
    from ablations.launch.costs import PlanCosts
    from ablations.launch.listing import print_plan
    from ablations.launch.submit import planned_machine, preview

    options, layout = workspace.options, workspace.layout
    _print_beside(options, corpus_lines(rows, workspace.source))
    jobs = preview(workspace.ladder, options, layout, rows) if options.cluster == "slurm" else ""
    machine = planned_machine(options, workspace.execution)
    print_plan(rows, PlanCosts(layout, rows, workspace.source, machine), as_json=options.json)
    _print_beside(options, [*jobs.splitlines(), *lines, *_tokenizer_lines(workspace.source)])
    refuse(misfits(rows, machine))
    require_scorable_tasks(rows, layout, workspace.source)
    return EXIT_DONE


def _tokenizer_lines(source: "Source") -> list[str]:
    """Return what tokenizers are trained on, if a ladder's own corpora are among it."""
    if not (source.trains_tokenizers and source.own_corpora):
        return []
    line = f"tokenizer trained on: {', '.join(source.tokenizer_texts)}"
    hint = "give --data DIR, which may be empty and names the data in titles, to train it on the ladder's corpora alone"
    return [f"{line} ({hint})" if set(source.tokenizer_texts) - set(source.corpora) else line]


MODES: "dict[str, Callable[[argparse.Namespace, Ladder], int]]" = {
    "gc": _clean,
    "cancel": _cancel,
    "model": _run_model,
    "list": _list_variants,
}
"""What the command does under a flag; without one of these it runs variants."""


if __name__ == "__main__":
    sys.exit(main())

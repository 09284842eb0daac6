"""Run variants of the ladder: pre-training, then the GLUE grid. The same command starts, resumes and retries.

python ablations/run.py --list                        the ladder: lineage, sources, states
python ablations/run.py --variant M7 --dry-run        what would run, with ids, sizes and states
python ablations/run.py --variant M0..M5 --seed 0 1   run what is missing, on this machine
python ablations/run.py --stages contrastive --model DIR     contrastive fine-tuning of an encoder from elsewhere
python ablations/run.py --design factorial --factors positions norm --dry-run   what a design needs and has
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if __name__ == "__main__":  # a script's own folder would hide packages of the same names as its modules
    sys.path[0] = str(Path(__file__).resolve().parent.parent)

from ablations.flags import (
    MODEL_HELP,
    add_cluster_flags,
    add_design_flags,
    add_execution_flags,
    add_perplexity_flags,
    add_trust_flags,
    refuse_execution_flags,
    refuse_heldout_context,
    trust_of,
    with_execution_flags,
)
from neobert.command_line import count, guarded, parser_from, seed
from neobert.errors import EXIT_DONE, EXIT_RUN_FAILED

if TYPE_CHECKING:
    from ablations.design_plan import ScaledDesign
    from ablations.execute import Workplace
    from ablations.plan import Row
    from neobert.runs.layout import Layout


def build_parser() -> argparse.ArgumentParser:
    """The command's flags."""
    parser = parser_from("python ablations/run.py", __doc__)
    add = parser.add_argument
    add("--variant", nargs="+", action="extend", metavar="NAME", help="names, M0..M5, or all")
    add("--model", metavar="DIR_OR_ID", help=f"instead of variants {MODEL_HELP}")
    add_trust_flags(parser)
    add("--protocol", metavar="VARIANT", help="with --model: whose contrastive fine-tuning (default: the ladder's)")
    add("--scale", choices=("smoke", "laptop", "proxy", "paper"), default="smoke", help="how large (default: smoke)")
    add("--data", metavar="SOURCE", help="synthetic, hub, or a folder (default: synthetic)")
    add("--seed", nargs="+", action="extend", type=seed, metavar="N", help="one run a seed (default: 0)")
    add(
        "--stages",
        nargs="+",
        choices=("pretrain", "glue", "contrastive", "mteb", "perplexity"),
        default=["pretrain", "glue"],
        help="which parts to run; mteb (Table 4) brings contrastive with it",
    )
    add("--pairs", nargs="+", action="extend", metavar="SET", help="data sets for contrastive (default: all there are)")
    add("--zero-shot", action="store_true", help="with mteb: measure encoders as they were pre-trained (Figure 4)")
    add(
        "--without-texts-of",
        nargs="+",
        action="extend",
        metavar="PATH",
        help="leave out pairs that share a text with these parquet files or folders, case and punctuation aside",
    )
    add("--workers", type=count, metavar="N", help="processes side by side (default: cores / threads of the scale)")
    add("--runs", type=Path, default=Path("runs"), help="folder of runs (default: ./runs)")
    add("--dry-run", action="store_true", help="print the plan and stop")
    add("--list", action="store_true", help="print the ladder and stop")
    add("--cancel", action="store_true", help="cancel the jobs that work on the variants named, and stop")
    add("--gc", action="store_true", help="print which checkpoints, data and code nothing refers to, and stop")
    add("--delete", action="store_true", help="with --gc: remove them")
    add("--json", action="store_true", help="print JSON on stdout")
    add_perplexity_flags(parser)
    add_design_flags(parser)
    add_execution_flags(parser)
    add_cluster_flags(parser)
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; returns its exit code (0 done, 1 a run failed, 2 refused, 3 missing data or run)."""
    parser = build_parser()
    options = parser.parse_args(arguments)
    if options.delete and not options.gc:
        parser.error("--delete goes with --gc")
    if options.perplexity_text is not None and "perplexity" not in options.stages:
        parser.error("--perplexity-text goes with --stages … perplexity")
    if options.zero_shot and "mteb" not in options.stages:
        parser.error("--zero-shot goes with --stages … mteb")
    if not {"contrastive", "mteb"}.intersection(options.stages):
        for flag, value in (("--pairs", options.pairs), ("--without-texts-of", options.without_texts_of)):
            if value:
                parser.error(f"{flag} goes with --stages … contrastive or mteb")
    if options.protocol and options.model is None:
        parser.error("--protocol goes with --model: a variant has its own")
    if options.model is not None:
        return guarded("run.py", lambda: _run_model(options), options.runs)
    if options.gc:
        return guarded("run.py", lambda: _clean(options), options.runs)
    if not options.list and not options.variant and not options.design:
        parser.error("name variants with --variant (M7, M0..M5, all), --design or --model, or see them with --list")
    return guarded("run.py", lambda: _run(options), options.runs)


def _clean(options: argparse.Namespace) -> int:
    from neobert.runs.cleanup import clean
    from neobert.runs.layout import Layout

    clean(Layout(options.runs.resolve()), delete=options.delete, as_json=options.json)
    return EXIT_DONE


def _run_model(options: argparse.Namespace) -> int:
    from ablations.model_runs import run_model

    return run_model(options)


def _run(options: argparse.Namespace) -> int:
    from ablations.checks import refuse_misfits
    from ablations.design_plan import planned_design
    from ablations.execute import PlannedRows, open_workplace
    from ablations.ladder import variants as declared_variants
    from ablations.listing import print_ladder, print_plan
    from ablations.plan import EmbeddingChoice, chosen_variants, plan
    from ablations.scales import execution_at, vocabulary_of
    from ablations.submit import place_of, planned_machine, preview

    trust_of(options)
    refuse_execution_flags(options)
    execution = with_execution_flags(execution_at(options.scale), options)
    workplace = open_workplace(options, execution, options.without_texts_of or [])
    layout, source = workplace.layout, workplace.source
    design = planned_design(options, vocabulary_of(source))
    variants = design.design.variants if design else chosen_variants(options.variant or list(declared_variants()))
    choice = EmbeddingChoice(pairs=options.pairs, zero_shot=options.zero_shot)
    rows = plan(variants, options.seed or [0], options.scale, source, layout, options.stages, choice=choice)
    refuse_heldout_context(options.heldout_context, rows)
    if options.list:
        print_ladder(rows, as_json=options.json)
        _print_design(options, design, rows)
        return EXIT_DONE
    if options.cancel:
        return _cancel(layout, rows)
    if options.dry_run:
        jobs = preview(options, layout, PlannedRows(rows).named_runs()) if options.cluster == "slurm" else ""
        machine = planned_machine(options)
        print_plan(rows, layout, source, machine, as_json=options.json)
        print(jobs, end="", file=sys.stderr if options.json else sys.stdout)
        _print_design(options, design, rows)
        refuse_misfits(rows, machine)
        return EXIT_DONE
    if place_of(options) == "slurm":
        return _submit(workplace, rows)
    return _carry_out(workplace, rows)


def _print_design(options: argparse.Namespace, design: "ScaledDesign | None", rows: "list[Row]") -> None:
    from ablations.design_plan import design_lines

    if design is not None:
        lines = design_lines(design, rows)
        print("\n".join(lines), file=sys.stderr if options.json else sys.stdout)


def _cancel(layout: "Layout", rows: "list[Row]") -> int:
    from ablations.submit import jobs_to_cancel
    from neobert.console import logs
    from neobert.slurm.submit import cancel

    jobs = jobs_to_cancel(layout, rows)
    if jobs:
        cancel(jobs)
    logs().print(f"{len(jobs)} job(s) cancelled {' '.join(jobs)}; what they finished or saved stays", markup=False)
    return EXIT_DONE


def _submit(workplace: "Workplace", rows: "list[Row]") -> int:
    """Send what is missing to SLURM and return at once."""
    from ablations.checks import refuse, validate
    from ablations.execute import PlannedRows, send
    from ablations.submit import dispatch_of, machine_on
    from neobert.console import logs

    layout = workplace.layout
    dispatch, execution = dispatch_of(workplace.options, layout, workplace.execution)
    for remark in refuse(validate(rows, layout, workplace.source, machine_on(dispatch.profile, execution))):
        logs().print(remark, markup=False)
    _name_left_out(rows)
    if "perplexity" in workplace.options.stages:
        logs().print("pseudo-perplexity is no job: when all is done, run this with --cluster here", markup=False)
    return send(workplace, PlannedRows(rows), dispatch, execution)


def _name_left_out(rows: "list[Row]") -> None:
    from neobert.console import logs

    for reason in dict.fromkeys(f"{task}: {why}" for row in rows for task, why in row.skipped.items()):
        logs().print(f"left out: {reason}", markup=False)


def _carry_out(workplace: "Workplace", rows: "list[Row]") -> int:
    from ablations.execute import PlannedRows, report_failures, work_here
    from ablations.listing import print_outcome

    layout, options = workplace.layout, workplace.options
    _name_left_out(rows)
    runs = PlannedRows(rows).unfinished(layout)
    code = work_here(workplace, PlannedRows(rows), runs)
    print_outcome(layout, rows, as_json=options.json)
    if code == EXIT_DONE and "perplexity" in options.stages:
        from ablations.execute import measure_perplexity, perplexity_flags, pretraining_ids

        threads = workplace.execution.threads
        ids, flags = pretraining_ids(rows), perplexity_flags(options)
        return measure_perplexity(layout, ids, threads=threads, as_json=options.json, flags=flags)
    return report_failures(layout, runs) if code == EXIT_RUN_FAILED else code


if __name__ == "__main__":
    sys.exit(main())

"""Run variants of the ladder: pre-training, then the GLUE grid. The same command starts, resumes and retries.

python ablations/run.py list                          the ladder: parents, changes, sources, states
python ablations/run.py --variant M7 --dry-run        what would run, with ids, sizes and states
python ablations/run.py --variant M0..M5 --seed 0 1   run what is missing, on this machine or on SLURM
python ablations/run.py --design leave-one-out --dry-run   M9, and M9 without each of its modifications
python ablations/run.py cancel --variant M7           cancel the jobs of a variant
python ablations/run.py gc                            which checkpoints could go; --delete removes them
python ablations/run.py model DIR_OR_ID               contrastive fine-tuning of an external encoder

`run.py list --help` has the flags of `list`, and so on. --list, --cancel and --gc select these too.
"""

import json
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if __name__ == "__main__":  # a script's own folder would hide packages of the same names as its modules
    sys.path[0] = str(Path(__file__).resolve().parent.parent)

from ablations.launch.flags import (
    DEFAULT_RUNS,
    MODEL_HELP,
    Flags,
    add_benchmark_flag,
    add_data_flags,
    add_execution_flags,
    add_place_flags,
    add_stages_flag,
    add_trust_flag,
    selection_from,
    workspace_from,
)
from neobert.command_line import Parser, guarded, parser_from, seed
from neobert.errors import EXIT_DONE
from neobert.runs.kinds import STAGES_OF_VARIANTS

if TYPE_CHECKING:
    from ablations.launch.execute import Workspace
    from ablations.plan import VariantRow

PROGRAM = "python ablations/run.py"
FLAGS_OF_STAGES = {
    "zero_shot": ("mteb",),
    "benchmark": ("mteb",),
    "pairs": ("contrastive", "mteb"),
}
"""Flags that are only allowed with some stages."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; return its exit code (0 done, 1 a run failed, 2 refused, 3 missing data or run)."""
    command, *words = _with_command(sys.argv[1:] if arguments is None else arguments)
    return COMMANDS[command](words)


def _with_command(words: Sequence[str]) -> list[str]:
    """Return the words with a command in front: `run`, or the one that a flag of the same name stands for."""
    if words and words[0] in COMMANDS:
        return list(words)
    for number, word in enumerate(words):
        if word in ("--list", "--cancel", "--gc"):
            return [word.removeprefix("--"), *words[:number], *words[number + 1 :]]
    return ["run", *words]


# Variants


def build_parser(command: str = "run") -> Parser:
    """Return the parser of `run`, `list` or `cancel`. All flags of a run are allowed for the others, so that one word
    turns a command into another."""
    described = {
        "list": "Print the ladder and stop.",
        "cancel": "Cancel live jobs; finished runs and checkpoints stay.",
    }
    parser = parser_from(f"{PROGRAM} {command}" if command in described else PROGRAM, described.get(command, __doc__))
    add = parser.add_argument
    chosen = parser.add_mutually_exclusive_group().add_argument
    chosen("--variant", nargs="+", action="extend", metavar="NAME", help="names (M7), ranges (M0..M5), or all")
    design = "the last variant without each modification, or the baseline with each, instead of --variant"
    chosen("--design", choices=("leave-one-out", "add-one"), help=design)
    add("--seed", nargs="+", action="extend", type=seed, metavar="N", help="seeds; one run for each (default: 0)")
    add_stages_flag(
        parser,
        (*STAGES_OF_VARIANTS, "perplexity"),
        "which parts to run (default: pretraining glue). pretraining (or pretrain) is always included. mteb (Table 4) "
        "includes contrastive. readouts: held-out loss on all corpora, and BLiMP. perplexity: pseudo-perplexity by "
        "length (Figure 2)",
    )
    add("--zero-shot", action="store_true", help="with mteb: measure encoders as they were pre-trained (Figure 4)")
    add_benchmark_flag(parser)
    _add_pairs_flag(parser)
    add_data_flags(parser)
    add_place_flags(parser, "plan" if command != "cancel" else "")
    add_execution_flags(parser)
    return parser


def _add_pairs_flag(parser: Parser) -> None:
    text = "data sets of pairs for contrastive (default: all)"
    parser.add_argument("--pairs", nargs="+", action="extend", metavar="SET", help=text)


def _parse(command: str, words: Sequence[str]) -> Flags:
    """Parse the words behind a command on variants; the parser ends the command if flags do not go together."""
    parser = build_parser(command)
    flags = vars(parser.parse_args(words))
    if command != "list" and not flags["variant"] and not flags["design"]:
        parser.error("name variants with --variant (M7, M0..M5, all) or --design; `run.py list` shows them")
    for name, stages in FLAGS_OF_STAGES.items():
        if flags[name] and not set(stages).intersection(flags["stages"]):
            parser.error(f"--{name.replace('_', '-')} goes with --stages … {' or '.join(stages)}")
    return flags


def _plan(workspace: "Workspace") -> "tuple[list[VariantRow], list[str]]":
    """Plan the selected variants; the sentences are about variants of a design that are left out."""
    from ablations.names import chosen_variants, variants_of_design
    from ablations.plan import plan
    from ablations.scaling import vocabulary_of

    its, source = workspace.selection, workspace.source
    left_out: list[str] = []
    if its.design is None:
        chosen = chosen_variants(its.ladder, its.variants or list(its.ladder.variants))
    else:
        chosen, left_out = variants_of_design(its.ladder, its.design, its.scale, vocabulary_of(source))
    rows = plan(its.ladder, chosen, its.seeds, its.scale, source, workspace.layout, its.stages, choice=its.embedding)
    return rows, [f"left out: {sentence}" for sentence in left_out]


def _run(words: Sequence[str]) -> int:
    flags = _parse("run", words)
    return guarded("run.py", lambda: _run_variants(workspace_from(flags, selection_from(flags))), flags["runs"])


def _run_variants(workspace: "Workspace") -> int:
    from ablations.launch.execute import run_or_submit
    from ablations.launch.outcomes import print_outcome
    from neobert.console import logs

    rows, lines = _plan(workspace)
    if workspace.dry_run:
        return _show_plan(workspace, rows, lines)
    lines += dict.fromkeys(f"left out: {task}: {why}" for row in rows for task, why in row.skipped.items())
    for line in lines:
        logs().print(line, markup=False)
    return run_or_submit(workspace, rows, lambda: print_outcome(workspace.layout, rows, as_json=workspace.as_json))


def _show_plan(workspace: "Workspace", rows: "Sequence[VariantRow]", lines: Sequence[str]) -> int:
    """Print the plan, the batch files for SLURM and the lines; refuse stages that do not fit."""
    from ablations.launch.checks import require_memory, require_room, require_scorable_tasks
    from ablations.launch.costs import Machine, PlanCosts
    from ablations.launch.listing import print_plan
    from ablations.launch.submit import plan_jobs, submitter_of

    layout, place = workspace.layout, workspace.place
    require_scorable_tasks(rows, layout, workspace.source)
    jobs = ""
    if place.cluster == "slurm":
        jobs = submitter_of(workspace.selection, place, layout).preview(plan_jobs(layout, rows, place.profile))
    if place.cluster == "here":
        place.refuse_here()
        require_room(rows, place.workers)
    machine = Machine.of(place, workspace.execution, workspace.scale)
    print_plan(rows, PlanCosts(layout, rows, workspace.source, machine), as_json=workspace.as_json)
    _print_beside([*jobs.splitlines(), *lines], as_json=workspace.as_json)
    require_memory(rows, machine)
    return EXIT_DONE


def _print_beside(lines: Sequence[str], *, as_json: bool) -> None:
    """Print lines; to stderr if stdout has JSON."""
    for line in lines:
        print(line, file=sys.stderr if as_json else sys.stdout)


# Other commands


def _list(words: Sequence[str]) -> int:
    flags = _parse("list", words)

    def print_ladder_of_selection() -> int:
        from ablations.launch.execute import open_workspace
        from ablations.launch.listing import print_ladder
        from ablations.launch.request import Place

        rows, lines = _plan(open_workspace(selection_from(flags), Place(), dry_run=True))
        print_ladder(rows, as_json=flags["json"])
        _print_beside(lines, as_json=flags["json"])
        return EXIT_DONE

    return guarded("run.py", print_ladder_of_selection, flags["runs"])


def _cancel(words: Sequence[str]) -> int:
    flags = _parse("cancel", words)
    return guarded("run.py", lambda: _cancel_jobs(flags), flags["runs"])


def _cancel_jobs(flags: Flags) -> int:
    from ablations.launch.submit import cancel_jobs
    from ablations.loading import load
    from ablations.names import chosen_variants, names_of_design
    from neobert.console import logs
    from neobert.runs.layout import Layout

    ladder, design = load(flags["ladder"]), flags["design"]
    names = {variant.name for variant in chosen_variants(ladder, flags["variant"] or [])}
    names |= set(names_of_design(ladder, design)) if design else set()
    scale = flags["scale"] and ladder.scale_named(flags["scale"])
    jobs = cancel_jobs(Layout(flags["runs"].resolve()), ladder, names, scale, flags["data"], flags["seed"])
    if flags["json"]:
        print(json.dumps(jobs))
    said = f"{len(jobs)} job(s) cancelled {' '.join(jobs)}; what they finished or saved stays"
    none = f"no matching job is running in {flags['runs']}: ablations/status.py shows all jobs"
    logs().print(said if jobs else none, markup=False)
    return EXIT_DONE


def _clean(words: Sequence[str]) -> int:
    parser = parser_from(f"{PROGRAM} gc", "Print which checkpoints of finished training could go.")
    parser.add_argument("--delete", action="store_true", help="remove them")
    parser.add_argument("--runs", type=Path, default=DEFAULT_RUNS, help="folder of runs (default: ./runs)")
    parser.add_argument("--json", action="store_true", help="print JSON on stdout")
    options = parser.parse_args(words)

    def clean_up() -> int:
        from neobert.runs.cleanup import clean
        from neobert.runs.layout import Layout

        clean(Layout(options.runs.resolve()), delete=options.delete, as_json=options.json)
        return EXIT_DONE

    return guarded("run.py", clean_up, options.runs)


def _run_model(words: Sequence[str]) -> int:
    others = "GLUE and MTEB: sweeps/glue_grid.py and sweeps/mteb_suite.py, each with --model."
    parser = parser_from(f"{PROGRAM} model", f"Fine-tune an external encoder contrastively. {others}")
    parser.set_defaults(stages=["contrastive"])
    parser.add_argument("model", metavar="DIR_OR_ID", help=MODEL_HELP)
    parser.add_argument(
        "--seed", dest="finetuning_seed", nargs="+", action="extend", type=seed, metavar="N", help="seeds (default: 0)"
    )
    _add_pairs_flag(parser)
    add_data_flags(parser)
    add_trust_flag(parser)
    add_place_flags(parser, "plan")
    add_execution_flags(parser)
    flags = vars(parser.parse_args(words))
    return guarded("run.py", lambda: _tune_model(flags), flags["runs"])


def _tune_model(flags: Flags) -> int:
    from ablations.launch.execute import run_or_submit
    from ablations.launch.outcomes import print_model_outcome
    from ablations.plan import plan_model

    workspace = workspace_from(flags, selection_from(flags))
    its, layout, source = workspace.selection, workspace.layout, workspace.source
    model, seeds = workspace.external_model(), its.finetuning_seeds or [0]
    row = plan_model(its.ladder, model, seeds, its.scale, source, layout, its.stages, choice=its.embedding)
    return run_or_submit(workspace, [row], lambda: print_model_outcome(layout, row, as_json=workspace.as_json))


COMMANDS: Mapping[str, Callable[[Sequence[str]], int]] = {
    "run": _run,
    "list": _list,
    "cancel": _cancel,
    "gc": _clean,
    "model": _run_model,
}


if __name__ == "__main__":
    sys.exit(main())

"""Measure an encoder on embedding tasks (Table 4): contrastive fine-tuning if it is not done yet, then every task.

python sweeps/mteb_suite.py --variant M10                     every task that --data has, after contrastive fine-tuning
python sweeps/mteb_suite.py --variant M10 --zero-shot         as it was pre-trained (Figure 4)
python sweeps/mteb_suite.py --model BERT-base --data DIR --scale paper    a model of Table 4
python sweeps/mteb_suite.py --model DIR --data DIR            any encoder, the mean over its tokens
python sweeps/mteb_suite.py --variant M8 --tasks STS12 STS13 --data DIR --dry-run
python sweeps/mteb_suite.py --variant M8 --benchmark "MTEB(eng, v2)" --data DIR    the 41 tasks of v2

The same command starts, resumes and retries; each task has one record, and mteb's own result files are in
RUNS/mteb/result_cache.
"""

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if __name__ == "__main__":  # a script's own folder is on sys.path, the repository with the packages is not
    sys.path[0] = str(Path(__file__).resolve().parent.parent)

from ablations.launch.flags import add_benchmark_flag, selection_from
from neobert.command_line import Parser, guarded, parser_from
from sweeps.encoder import add_encoder_flags, encoder_row, measure

if TYPE_CHECKING:
    from ablations.launch.execute import Workspace
    from ablations.plan import PlanRow

TASK_COLUMNS = ("protocol", "seed", "task", "category", "suite", "state", "score", "texts", "empty", "cut")
MEAN_COLUMNS = ("protocol", "seed", "suite", "category", "mean", "tasks")


def build_parser() -> Parser:
    """Return the command's parser."""
    parser = parser_from("python sweeps/mteb_suite.py", __doc__)
    add = parser.add_argument
    add("--tasks", nargs="+", action="extend", metavar="NAME", help="only these tasks (default: all that --data has)")
    add_benchmark_flag(parser)
    add("--zero-shot", action="store_true", help="measure the pre-trained encoder, without contrastive fine-tuning")
    add("--pairs", nargs="+", action="extend", metavar="SET", help="data sets of pairs for fine-tuning (default: all)")
    add_encoder_flags(parser, "tasks")
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; return its exit code (0 done, 1 a task failed, 2 refused, 3 missing data or run)."""
    parser = build_parser()
    flags = vars(parser.parse_args(arguments))
    if flags["zero_shot"] and flags["pairs"]:
        parser.error("--pairs are read by contrastive fine-tuning, which --zero-shot leaves out")
    return guarded("mteb_suite.py", lambda: measure(flags, selection_from(flags), _sweep), flags["runs"])


def _sweep(workspace: "Workspace", pretrains: bool) -> int:
    from ablations.launch.execute import run_or_submit
    from ablations.recipe_runs import wanted_tasks

    wanted_tasks(workspace.source, workspace.selection.embedding)  # refuses a wrong name before a model is loaded
    row = encoder_row(workspace, ["mteb"], pretrains=pretrains)
    return run_or_submit(workspace, [row], lambda: print_outcome(workspace, row))


def print_outcome(workspace: "Workspace", row: "PlanRow") -> None:
    """Print every task with its state, then means with their numbers of tasks; as JSON {"tasks": …, "means": …} for
    each evaluation."""
    from ablations.launch.outcomes import in_points, means_of, task_entries
    from neobert.console import logs, output, table
    from neobert.kinds.mteb import EmbeddingEvaluation

    available = workspace.source.embedding_tasks()
    evaluations = EmbeddingEvaluation.among(row.runs)
    entries = [task_entries(workspace.layout, evaluation) for evaluation in evaluations]
    means = [means_of(each, available) for each in entries]
    if workspace.as_json:
        found = zip(entries, means, strict=True)
        print(json.dumps([{"tasks": tasks, "means": of_tasks} for tasks, of_tasks in found], indent=1))
        return
    shown = [{**entry, "score": in_points(entry["score"])} for each in entries for entry in each]
    task_cells = [[entry[column] for column in TASK_COLUMNS] for entry in shown]
    output().print(table(f"{row.heading}: main scores of tasks, ×100", TASK_COLUMNS, task_cells))
    mean_cells = [
        (
            evaluation.encoder.protocol,
            evaluation.seed,
            mean["suite"],
            mean["category"] or "all tasks",
            in_points(mean["score"]),
            f"{mean['tasks']} of {mean['expected']}",
        )
        for evaluation, of_tasks in zip(evaluations, means, strict=True)
        for mean in of_tasks
    ]
    output().print(table("Means of main scores, ×100", MEAN_COLUMNS, mean_cells))
    for entry in shown:
        if entry["error"]:
            logs().print(f"failed: {entry['task']}: {entry['error']}", markup=False)


if __name__ == "__main__":
    sys.exit(main())

"""Measure an encoder on tasks of embeddings (Table 4): contrastive fine-tuning where it is not done, then every task.

python sweeps/mteb_suite.py --variant M10                     every task that --data has, after contrastive fine-tuning
python sweeps/mteb_suite.py --variant M10 --zero-shot         as it was pre-trained (Figure 4)
python sweeps/mteb_suite.py --model BERT-base --data DIR --scale paper    a model of Table 4; --model list names them
python sweeps/mteb_suite.py --model DIR --categories sts retrieval --data DIR   any encoder, the mean over its tokens
python sweeps/mteb_suite.py --variant M8 --tasks STS12 STS13 --data DIR --dry-run

The same command starts, resumes and retries; each task has one record, and mteb's own files of results lie in
RUNS/mteb/result_cache.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

if __name__ == "__main__":  # a script's own folder is on sys.path, the repository with the packages is not
    sys.path[0] = str(Path(__file__).resolve().parent.parent)

from ablations.flags import MODEL_HELP, add_trust_flags, trust_of
from neobert.command_line import guarded, parser_from
from neobert.errors import EXIT_DONE, EXIT_RUN_FAILED
from sweeps.flags import add_common_flags


def build_parser() -> argparse.ArgumentParser:
    """The command's flags."""
    parser = parser_from("python sweeps/mteb_suite.py", __doc__)
    add = parser.add_argument
    measured = parser.add_mutually_exclusive_group()
    measured.add_argument("--variant", metavar="NAME", help="a pre-trained variant (default: the newest finished run)")
    measured.add_argument("--model", metavar="DIR_OR_ID", help=MODEL_HELP)
    add("--protocol", metavar="VARIANT", help="with --model: whose protocol, M9@mteb-prompts (default: the ladder's)")
    add("--tasks", nargs="+", action="extend", metavar="NAME", help="only these (default: all that --data has)")
    add("--categories", nargs="+", action="extend", metavar="NAME", help="only those of these: sts, retrieval, …")
    add("--zero-shot", action="store_true", help="as it was pre-trained, without contrastive fine-tuning")
    add_trust_flags(parser)
    add("--pairs", nargs="+", action="extend", metavar="SET", help="data sets of fine-tuning (default: all there are)")
    add_common_flags(parser, "tasks")
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; returns its exit code (0 done, 1 a task failed, 2 refused, 3 missing data or run)."""
    parser = build_parser()
    options = parser.parse_args(arguments)
    if options.zero_shot and options.pairs:
        parser.error("--pairs are read by contrastive fine-tuning, which --zero-shot leaves out")
    return guarded("mteb_suite.py", lambda: _run(options), options.runs)


def _run(options: argparse.Namespace) -> int:
    from ablations.execute import open_workplace, report_failures, send, work_here
    from ablations.prefetch import LISTED, print_paper_models
    from ablations.scales import execution_at
    from ablations.submit import dispatch_of, place_of
    from neobert.runs.layout import Layout
    from sweeps.embedding_outcome import print_outcome
    from sweeps.embedding_planning import evaluation_of_model, evaluation_of_variant
    from sweeps.planning import take_newest_run

    if options.model == LISTED:
        print_paper_models(options.data or "synthetic")
        return EXIT_DONE
    trust_of(options)
    layout = Layout(options.runs.resolve())
    pretrains = options.variant is None and options.model is None and take_newest_run(options, layout)
    workplace = open_workplace(options, execution_at(options.scale))
    source = workplace.source
    if options.model is not None:
        sweep = evaluation_of_model(options, layout, source)
    else:
        sweep = evaluation_of_variant(options, layout, source, pretrains=pretrains)
    if options.dry_run:
        print_outcome(layout, sweep, source, as_json=options.json)
        return EXIT_DONE
    if place_of(options) == "slurm":
        return send(workplace, sweep, *dispatch_of(options, layout, workplace.execution))
    runs = sweep.unfinished(layout)
    code = work_here(workplace, sweep, runs)
    print_outcome(layout, sweep, source, as_json=options.json)
    return report_failures(layout, runs) if code == EXIT_RUN_FAILED else code


if __name__ == "__main__":
    sys.exit(main())

"""Export checkpoints of pre-training or contrastive runs, and check that the exports compute what the runs compute.

python -m neobert.export runs/pretraining/0123456789ab --to hf --out exported
python -m neobert.export runs/pretraining/0123456789ab --to hf --remote-code --out exported --push someone/model
python -m neobert.export runs/pretraining/0123456789ab --to onnx --out exported --step 0
python -m neobert.export runs/contrastive/0123456789ab --to sentence-transformers --out exported --instructions mteb
python -m neobert.export --all runs --to hf --out exported --checkpoints --push someone/study --dry-run
"""

import argparse
import json
import sys
from collections.abc import Sequence
from contextlib import redirect_stdout
from pathlib import Path
from typing import get_args

from neobert.command_line import guarded, parser_from, refuse_no_folder, whole_number
from neobert.data.mteb_tasks import Wording
from neobert.errors import EXIT_DONE, exit_code
from neobert.export.publishing import Target, check_repository, check_token, export, export_all, plan_exports, push

TARGETS = get_args(Target)


def build_parser() -> argparse.ArgumentParser:
    """Return the command's parser."""
    parser = parser_from("python -m neobert.export", __doc__)
    add = parser.add_argument
    which = parser.add_mutually_exclusive_group(required=True)
    which.add_argument(
        "run", type=Path, nargs="?", metavar="RUN", help="folder of a run, runs/pretraining/<id> or contrastive/<id>"
    )
    which.add_argument(
        "--all", type=Path, metavar="RUNS", help="every finished run of a folder of runs, each in a folder below --out"
    )
    add("--to", choices=TARGETS, required=True, help="what the folder is for")
    add("--out", type=Path, required=True, metavar="DIR", help="folder to write; without --all it must not exist")
    add(
        "--step",
        type=whole_number,
        metavar="N",
        help="a checkpoint on the way, 0 included (default: the finished run's last)",
    )
    add(
        "--remote-code",
        action="store_true",
        help="also put the model's code there, for use without this package (trust_remote_code)",
    )
    add(
        "--instructions",
        choices=get_args(Wording),
        help="whose instructions become the prompts of the 56 tasks of MTEB(eng, v1) (default: those of the paper)",
    )
    add(
        "--push",
        metavar="REPO",
        help="also upload the folder to this repository of the Hugging Face hub, user/model; with --all what the names "
        "of the repositories begin with",
    )
    add("--checkpoints", action="store_true", help="with --all: also those on the way, on branches of the repositories")
    add("--dry-run", action="store_true", help="with --all: print what would be written and pushed, as JSON")
    add("--json", action="store_true", help="say errors as JSON too; the answer on stdout always is")
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; return its exit code (0 done, 1 damaged or not pushed, 2 refused, 3 missing, 4 parity off)."""
    options = build_parser().parse_args(arguments)
    return guarded("neobert.export", lambda: _run(options), options.out)


def _run(options: argparse.Namespace) -> int:
    if options.remote_code and options.to == "onnx":
        raise ValueError("--remote-code is for --to hf or sentence-transformers: an ONNX graph needs no code")
    if options.all is not None:
        return _run_all(options)
    for flag in ("checkpoints", "dry_run"):
        if vars(options)[flag]:
            raise ValueError(f"--{flag.replace('_', '-')} is for --all: name the folder of runs with it")
    with redirect_stdout(sys.stderr):  # libraries print, but stdout must be one line of JSON
        if options.push is not None:
            check_repository(options.push)
            check_token(options.push)
        done = export(
            options.run, options.to, options.out, options.step, options.remote_code, instructions=options.instructions
        )
        if options.push is not None:
            done["pushed"] = push(options.out, options.push, f"Run {done['run']}, step {done['step']}")
    print(json.dumps(done))
    return EXIT_DONE


def _run_all(options: argparse.Namespace) -> int:
    """Export every finished run; return the exit code of the first failure."""
    if options.step is not None:
        raise ValueError("--step is of one run: take --checkpoints for all those on the way")
    if options.instructions:
        raise ValueError("--instructions is of one contrastive run: export that alone")
    planned = plan_exports(options.all, options.out, checkpoints=options.checkpoints, repositories=options.push)
    failed: list[Exception] = []
    if not options.dry_run:
        refuse_no_folder("--out", options.out)
        with redirect_stdout(sys.stderr):
            if options.push is not None:
                check_token(options.push)
            failed = export_all(planned, options.to, options.out, options.remote_code)
    print(json.dumps([each.facts() for each in planned], indent=1))
    return exit_code(failed[0]) if failed else EXIT_DONE


if __name__ == "__main__":
    sys.exit(main())

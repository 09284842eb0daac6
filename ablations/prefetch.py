"""Download corpora, tasks, tokenizers, pairs and models from the Hugging Face hub into a folder for --data DIR.

python ablations/prefetch.py --variant all --data-dir DIR --dry-run     items, commits, files, sizes; nothing is written
python ablations/prefetch.py --variant all --data-dir DIR               download; after a kill the same command resumes
python ablations/prefetch.py --variant all --data-dir DIR --check       does the folder hold all that the plan needs?

Addresses and tokens are huggingface_hub's: HF_ENDPOINT, HF_TOKEN.
Exit codes: 0 done, 1 disk or damage, 2 refused, 3 something is missing.
"""

import argparse
import json
import shlex
import sys
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING

if __name__ == "__main__":  # a script's own folder would hide packages of the same names as its modules
    sys.path[0] = str(Path(__file__).resolve().parent.parent)

from ablations.launch.flags import add_benchmark_flag, add_ladder_flag, add_scale_flag, add_stages_flag
from neobert.command_line import byte_count, count, guarded, parser_from
from neobert.errors import EXIT_DONE, EXIT_MISSING, EXIT_RUN_FAILED, RunFailed, exit_code
from neobert.files import inside

if TYPE_CHECKING:
    from neobert.data.download import DownloadPlan, Needs, PlannedItem

DOWNLOADS = 4


def build_parser() -> argparse.ArgumentParser:
    """Return the command's parser."""
    parser = parser_from("python ablations/prefetch.py", __doc__)
    add = parser.add_argument
    add("--variant", nargs="+", action="extend", required=True, metavar="NAME", help="names, M0..M5, or all")
    add("--data-dir", type=Path, required=True, metavar="DIR", help="the folder that --data DIR will read")
    add_ladder_flag(parser)
    add_scale_flag(parser, "scale of the plan (default: smoke; for a ladder of your own, its own or as-written)")
    add_stages_flag(parser, ("pretraining", "glue", "contrastive", "mteb"), "stages (default: pretraining glue)")
    add_benchmark_flag(parser)
    add(
        "--models",
        nargs="+",
        action="extend",
        default=[],
        metavar="NAME",
        help="also models of Table 4, or all of them",
    )
    add("--most-bytes", type=byte_count, metavar="SIZE", help="largest size of a corpus, in whole files (20GB, 1.5TB)")
    add("--workers", type=count, default=DOWNLOADS, metavar="N", help=f"files at a time (default: {DOWNLOADS})")
    add("--dry-run", action="store_true", help="print what would be downloaded and stop")
    add("--check", action="store_true", help="without a network, read all bytes and list what is missing")
    add("--json", action="store_true", help="print JSON on stdout")
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; return its exit code (0 done, 1 disk or damage, 2 refused, 3 something is missing)."""
    parser = build_parser()
    options = parser.parse_args(arguments)
    if options.benchmark and "mteb" not in options.stages:
        parser.error("--benchmark goes with --stages … mteb")

    def prefetch() -> int:
        needs = _needs(options)
        return _check(options, needs) if options.check else _download(options, needs)

    return guarded("prefetch.py", prefetch, options.data_dir)


def _needs(options: argparse.Namespace) -> "Needs":
    """Return the data that the plan and the models need."""
    from ablations.launch.checks import requirements
    from ablations.loading import load
    from ablations.names import chosen_variants
    from ablations.paper_models import chosen_models

    ladder = load(options.ladder)
    options.scale = ladder.scale_named(options.scale)
    chosen = chosen_variants(ladder, options.variant)
    needs = requirements(ladder, chosen, options.scale, options.stages, options.benchmark)
    return replace(needs, models=chosen_models(options.models))


def _command(options: argparse.Namespace) -> str:
    """Return the command that downloads what is missing."""
    words = ["python", "ablations/prefetch.py", "--variant", *options.variant, "--data-dir", str(options.data_dir)]
    words += ["--scale", options.scale, "--stages", *options.stages]
    words += ["--benchmark", *options.benchmark] if options.benchmark else []
    words += ["--ladder", options.ladder] if options.ladder else []
    words += ["--models", *options.models] if options.models else []
    words += ["--most-bytes", str(options.most_bytes)] if options.most_bytes else []
    return shlex.join(words)


def _check(options: argparse.Namespace, needs: "Needs") -> int:
    from neobert.data.download import items_of, verify_prefetch

    found, command = verify_prefetch(options.data_dir, needs), _command(options)
    if options.json:
        entries = [
            {"item": gap.item.name, "reason": gap.reason, "from": gap.item.repositories, "command": command}
            for gap in found
        ]
        print(json.dumps(entries, indent=1))
    else:
        for gap in found:
            print(f"missing: {gap.item.name}: {gap.reason} (from {gap.item.repositories})")
        checked = sum(1 for _ in items_of(needs))
        print(f"download it with: {command}" if found else f"complete: {checked} items, read without a network")
    return EXIT_MISSING if found else EXIT_DONE


def _download(options: argparse.Namespace, needs: "Needs") -> int:
    from neobert.data.download import CLAIMS, download, items_of, require_room, select
    from neobert.runs.claims import acquire

    errors: list[Exception] = []
    folder = options.data_dir
    claim = None if options.dry_run else acquire(inside(folder, CLAIMS))
    if claim is None and not options.dry_run:
        raise RunFailed(f"another prefetch is at work on {folder}: wait for its end")
    with claim or nullcontext():
        selection = select(folder, list(items_of(needs)), most_bytes=options.most_bytes)
        _print_plan(selection, as_json=options.json)
        require_room(folder, selection.missing_bytes)
        if not options.dry_run:
            errors = download(folder, selection, workers=options.workers)
    for problem in [*selection.problems, *map(str, errors)]:
        print(f"prefetch.py: {problem}", file=sys.stderr)
    codes = {exit_code(error) for error in errors} | ({EXIT_MISSING} if selection.problems else set())
    return max(codes & {EXIT_MISSING, EXIT_RUN_FAILED}, default=EXIT_DONE)


def _print_plan(selection: "DownloadPlan", *, as_json: bool) -> None:
    from neobert.console import output, quantity, table

    if as_json:
        print(json.dumps([_summary(row) for row in selection.rows], indent=1))
        return
    cells = [
        (
            row.item.name,
            row.item.repositories,
            ", ".join(revision[:12] for revision in row.revisions) or None,
            f"{row.files} of {row.published_files}" if row.files != row.published_files else row.files,
            f"{quantity(row.bytes)}B",
            f"{quantity(row.missing_bytes)}B",
            row.state,
        )
        for row in selection.rows
    ]
    output().print(table("", ("item", "from", "commit", "files", "size", "missing", "state"), cells))
    output().print(f"{quantity(selection.missing_bytes)}B missing")


def _summary(row: "PlannedItem") -> dict[str, object]:
    sources = [part.name for part in row.item.parts]
    return {**asdict(row), "item": row.item.name, "folder": row.item.folder, "from": sources}


if __name__ == "__main__":
    sys.exit(main())

"""Export checkpoints of pre-training or contrastive runs, and check that the exports compute what the runs compute.

python -m neobert.export runs/pretraining/0123456789ab --to hf --out exported
python -m neobert.export runs/pretraining/0123456789ab --to hf --out exported --step 0
python -m neobert.export runs/contrastive/0123456789ab --to sentence-transformers --out exported

The client of the hub uploads a folder: hf upload someone/model exported --private
"""

import argparse
import json
import sys
from collections.abc import Sequence
from contextlib import redirect_stdout
from pathlib import Path
from typing import get_args

from neobert.command_line import guarded, parser_from, whole_number
from neobert.errors import EXIT_DONE
from neobert.export.publishing import Target, export

TARGETS = get_args(Target)


def build_parser() -> argparse.ArgumentParser:
    """Return the command's parser."""
    parser = parser_from("python -m neobert.export", __doc__)
    add = parser.add_argument
    add("run", type=Path, metavar="RUN", help="folder of a run, runs/pretraining/<id> or runs/contrastive/<id>")
    add("--to", choices=TARGETS, required=True, help="library to export for")
    add("--out", type=Path, required=True, metavar="DIR", help="folder to write, which must not exist")
    add(
        "--step",
        type=whole_number,
        metavar="N",
        help="checkpoint at this step, 0 is possible (default: the last one of the finished run)",
    )
    add("--json", action="store_true", help="print errors as JSON too; stdout is always JSON")
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; return its exit code (0 done, 1 damaged, 2 refused, 3 missing, 4 parity off)."""
    options = build_parser().parse_args(arguments)
    return guarded("neobert.export", lambda: _run(options), options.out)


def _run(options: argparse.Namespace) -> int:
    with redirect_stdout(sys.stderr):  # libraries print, but stdout must be one line of JSON
        done = export(options.run, options.to, options.out, options.step)
    print(json.dumps(done))
    return EXIT_DONE


if __name__ == "__main__":
    sys.exit(main())

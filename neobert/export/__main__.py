"""Export a checkpoint of a pre-training or contrastive run, and check that the export computes what the run computes.

python -m neobert.export runs/pretraining/0123456789ab --to hf --out exported
python -m neobert.export runs/pretraining/0123456789ab --to hf --remote-code --out exported --push someone/model
python -m neobert.export runs/pretraining/0123456789ab --to onnx --out exported --step 0
python -m neobert.export runs/contrastive/0123456789ab --to sentence-transformers --out exported --instructions mteb
"""

import argparse
import json
import shutil
import sys
from collections.abc import Sequence
from contextlib import redirect_stdout
from pathlib import Path
from typing import get_args

from neobert.command_line import guarded, parser_from, whole_number
from neobert.data.mteb_tasks import Wording
from neobert.errors import EXIT_DONE, RunFailed
from neobert.files import publish_folder, temporary_sibling

TARGETS = ("hf", "sentence-transformers", "onnx")


def build_parser() -> argparse.ArgumentParser:
    """The command's flags."""
    parser = parser_from("python -m neobert.export", __doc__)
    add = parser.add_argument
    add("run", type=Path, metavar="RUN", help="folder of a run, runs/pretraining/<id> or contrastive/<id>")
    add("--to", choices=TARGETS, required=True, help="what the folder is for")
    add("--out", type=Path, required=True, metavar="DIR", help="folder to write; it must not exist")
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
    add("--push", metavar="REPO", help="also upload the folder to this repository of the Hugging Face hub, user/model")
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; returns its exit code (0 done, 1 damaged or not pushed, 2 refused, 3 missing, 4 parity is off)."""
    options = build_parser().parse_args(arguments)
    return guarded("neobert.export", lambda: _run(options), options.out)


def _run(options: argparse.Namespace) -> int:
    if options.remote_code and options.to == "onnx":
        raise ValueError("--remote-code is for --to hf or sentence-transformers: an ONNX graph needs no code")
    with redirect_stdout(sys.stderr):  # libraries talk, and the answer is one line of JSON
        if options.push is not None:
            check_repository(options.push)
        done = export(
            options.run, options.to, options.out, options.step, options.remote_code, instructions=options.instructions
        )
        if options.push is not None:
            done["pushed"] = push(options.out, options.push, f"Run {done['run']}, step {done['step']}")
    print(json.dumps(done))
    return EXIT_DONE


def export(
    run: Path,
    target: str,
    out: Path,
    step: int | None,
    with_code: bool = False,
    *,
    instructions: Wording | None = None,
) -> dict[str, object]:
    """Write `out`, whole or not at all; returns its name, the step and the deviations that were measured.

    with_code: the model's code is put beside it. instructions: whose wording the prompts of a contrastive run's tasks
        have; None stands for the paper's.

    Raises:
        ValueError: `out` exists, a package is not installed, or the run is of another kind.
        MissingData: there is no such run or step.
        ParityOff: the export does not compute what the run computes.
    """
    if out.exists():
        raise ValueError(f"--out {out} exists: name a new folder or remove it")
    from neobert.runs.run_file import read_run_file

    is_contrastive = read_run_file(run.resolve()).contrastive is not None
    if is_contrastive and with_code:
        raise ValueError("--remote-code is for pre-training runs: export a contrastive run without it")
    if instructions and not is_contrastive:
        raise ValueError("--instructions is for contrastive runs: a pre-trained encoder takes none")
    temporary = temporary_sibling(out.resolve())
    temporary.mkdir(parents=True)
    try:
        if is_contrastive:
            done = _export_contrastive(run.resolve(), target, step, temporary, instructions or "paper")
        else:
            done = _export_pretrained(run.resolve(), target, step, temporary, with_code)
        publish_folder(temporary, out.resolve())
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return {"folder": str(out), **done}


def _export_pretrained(run: Path, target: str, step: int | None, folder: Path, with_code: bool) -> dict[str, object]:
    from neobert.export.card import pretrained_card, write_evaluation_results
    from neobert.export.checkpoint import open_checkpoint
    from neobert.export.huggingface import write_sentence_transformers, write_transformers
    from neobert.export.onnx import write_onnx
    from neobert.export.remote_code import write_remote_code

    writers = {"hf": write_transformers, "sentence-transformers": write_sentence_transformers, "onnx": write_onnx}
    checkpoint = open_checkpoint(run, step)
    parity = writers[target](checkpoint, folder)
    if with_code:
        parity |= write_remote_code(checkpoint, folder)
    (folder / "README.md").write_text(pretrained_card(checkpoint, target, parity, with_code), encoding="utf-8")
    write_evaluation_results(checkpoint, folder)
    return {"run": checkpoint.run_file.id, "step": checkpoint.step, "parity": parity}


def _export_contrastive(run: Path, target: str, step: int | None, folder: Path, wording: Wording) -> dict[str, object]:
    from neobert.export.card import contrastive_card
    from neobert.export.contrastive import open_contrastive_checkpoint, write_contrastive

    checkpoint = open_contrastive_checkpoint(run, step, wording)
    parity = write_contrastive(checkpoint, target, folder)
    (folder / "README.md").write_text(contrastive_card(checkpoint, target, parity), encoding="utf-8")
    return {"run": checkpoint.run_file.id, "step": checkpoint.step, "parity": parity}


def check_repository(repository: str) -> None:
    """Check a repository's name, and that somebody is logged in, before anything is computed.

    Raises:
        ValueError: it is no name that the hub takes, or there is no token.
    """
    from huggingface_hub import get_token
    from huggingface_hub.errors import HFValidationError
    from huggingface_hub.utils import validate_repo_id

    try:
        validate_repo_id(repository)
    except HFValidationError as error:
        raise ValueError(
            f"--push {repository!r} names no repository of the hub, such as user/model: {error}"
        ) from error
    if get_token() is None:
        raise ValueError(f"--push {repository} needs a token of the hub: run hf auth login, or set HF_TOKEN")


def push(folder: Path, repository: str, message: str) -> str:
    """Upload a folder, into a new private repository where there is none; returns the commit's address.

    Raises:
        RunFailed: the hub refused, or was not reached; the folder stays.
    """
    from huggingface_hub import HfApi
    from huggingface_hub.errors import HTTPError  # that of the http library which the installed client uses

    api = HfApi()
    try:
        api.create_repo(repository, private=True, exist_ok=True)
        return str(api.upload_folder(repo_id=repository, folder_path=folder, commit_message=message).commit_url)
    except (HTTPError, OSError) as error:
        raise RunFailed(f"{folder} is exported, but the hub took no {repository}: {error}") from error


if __name__ == "__main__":
    sys.exit(main())

"""Export of one run to a folder that is complete or absent."""

import shutil
from pathlib import Path
from typing import Literal

from neobert.data.mteb_tasks import Wording
from neobert.files import publish_folder, temporary_sibling

Target = Literal["hf", "sentence-transformers"]


def export(
    run: Path,
    target: str,
    out: Path,
    step: int | None,
    with_code: bool | None = None,
    *,
    instructions: Wording | None = None,
) -> dict[str, object]:
    """Write `out` atomically; return its name, the run, the step and the measured deviations.

    with_code: whether to add the model's code; None stands for all pre-training runs.
    instructions: whose wording the prompts of a contrastive run's tasks have; None stands for the paper's.

    Raises:
        ValueError: `out` exists, a package is not installed, or the run is of another kind.
        MissingData: there is no such run or step.
        ParityOff: the export does not compute what the run computes.
    """
    if out.exists():
        raise ValueError(f"--out {out} exists: name a new folder or remove it")
    from neobert.runs.run_file import read_run_file

    run = run.resolve()
    is_contrastive = read_run_file(run).run.kind == "contrastive"
    if is_contrastive and with_code:
        raise ValueError("--remote-code is for pre-training runs: leave it out")
    if instructions and not is_contrastive:
        raise ValueError("--instructions is for contrastive runs: a pre-trained encoder takes none")
    temporary = temporary_sibling(out.resolve())
    temporary.mkdir(parents=True)
    try:
        if is_contrastive:
            done = _export_contrastive(run, target, step, temporary, instructions or "paper")
        else:
            done = _export_pretrained(run, target, step, temporary, with_code is not False)
        publish_folder(temporary, out.resolve())
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return {"folder": str(out), **done}


def _export_pretrained(run: Path, target: str, step: int | None, folder: Path, with_code: bool) -> dict[str, object]:
    from neobert.export.card import pretrained_card
    from neobert.export.checkpoint import open_checkpoint
    from neobert.export.huggingface import write_sentence_transformers, write_transformers
    from neobert.export.remote_code import write_remote_code

    writers = {"hf": write_transformers, "sentence-transformers": write_sentence_transformers}
    checkpoint = open_checkpoint(run, step)
    parity = writers[target](checkpoint, folder)
    if with_code:
        parity |= write_remote_code(checkpoint, folder)
    (folder / "README.md").write_text(pretrained_card(checkpoint, target, parity, with_code), encoding="utf-8")
    return {"run": checkpoint.run_file.id, "step": checkpoint.step, "parity": parity}


def _export_contrastive(run: Path, target: str, step: int | None, folder: Path, wording: Wording) -> dict[str, object]:
    from neobert.export.card import contrastive_card
    from neobert.export.contrastive import open_contrastive_checkpoint, write_contrastive

    checkpoint = open_contrastive_checkpoint(run, step, wording)
    parity = write_contrastive(checkpoint, target, folder)
    (folder / "README.md").write_text(contrastive_card(checkpoint, target, parity), encoding="utf-8")
    return {"run": checkpoint.run_file.id, "step": checkpoint.step, "parity": parity}

"""Export of one run to a folder that is complete or absent."""

import shutil
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Literal

from neobert.data.mteb_tasks import Wording
from neobert.files import publish_folder, temporary_sibling

Target = Literal["hf", "sentence-transformers", "onnx", "babylm"]


def export(
    run: Path,
    target: str,
    out: Path,
    step: int | None,
    with_code: bool | None = None,
    *,
    instructions: Wording | None = None,
    by_words: bool = False,
    pairs: Sequence[Path] = (),
) -> dict[str, object]:
    """Write `out` atomically; return its name, the run, the step and the measured deviations.

    with_code: whether to add the model's code; None stands for all pre-training runs except as an ONNX graph.
    by_words: whether to export each checkpoint that was kept by words, in a folder of its name below `out`, and the
        last one in `main`.
    instructions: whose wording the prompts of a contrastive run's tasks have; None stands for the paper's.
    pairs: folders of minimal pairs for the target `babylm`.

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
    if is_contrastive and (with_code or by_words or pairs):
        raise ValueError("--remote-code, --by-words and --to babylm are for pre-training runs: leave them out")
    if instructions and not is_contrastive:
        raise ValueError("--instructions is for contrastive runs: a pre-trained encoder takes none")
    if (target == "babylm") != bool(pairs):
        raise ValueError("--to babylm goes with --pairs, the folders of minimal pairs: give both or neither")
    if by_words and step is not None:
        raise ValueError("--by-words exports all checkpoints that were kept by words: leave --step out")
    temporary = temporary_sibling(out.resolve())
    temporary.mkdir(parents=True)
    try:
        if is_contrastive:
            done = _export_contrastive(run, target, step, temporary, instructions or "paper")
        else:
            done = _export_pretraining(run, target, step, temporary, with_code, by_words=by_words, pairs=pairs)
        publish_folder(temporary, out.resolve())
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return {"folder": str(out), **done}


def _export_pretraining(
    run: Path,
    target: str,
    step: int | None,
    folder: Path,
    with_code: bool | None,
    *,
    by_words: bool,
    pairs: Sequence[Path],
) -> dict[str, object]:
    code = target != "onnx" if with_code is None else with_code
    write: Callable[[Path, int | None, Path], dict[str, object]]
    write = partial(_predict, pairs=pairs) if pairs else partial(_export_pretrained, target=target, with_code=code)
    if by_words:
        return _export_by_words(run, folder, write)
    return write(run, step, folder / "main" if pairs else folder)


def _export_by_words(run: Path, folder: Path, write: Callable[[Path, int, Path], object]) -> dict[str, object]:
    from neobert.export.checkpoint import kept_by_words

    return {"checkpoints": {name: write(*kept, folder / name) for name, kept in kept_by_words(run).items()}}


def _predict(run: Path, step: int | None, folder: Path, *, pairs: Sequence[Path]) -> dict[str, object]:
    from neobert.export.babylm import write_predictions
    from neobert.export.checkpoint import open_checkpoint

    checkpoint = open_checkpoint(run, step)
    accuracy = write_predictions(checkpoint, pairs, folder)
    return {"run": checkpoint.run_file.id, "step": checkpoint.step, "accuracy": accuracy}


def _export_pretrained(run: Path, step: int | None, folder: Path, *, target: str, with_code: bool) -> dict[str, object]:
    from neobert.export.card import pretrained_card
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
    return {"run": checkpoint.run_file.id, "step": checkpoint.step, "parity": parity}


def _export_contrastive(run: Path, target: str, step: int | None, folder: Path, wording: Wording) -> dict[str, object]:
    from neobert.export.card import contrastive_card
    from neobert.export.contrastive import open_contrastive_checkpoint, write_contrastive

    checkpoint = open_contrastive_checkpoint(run, step, wording)
    parity = write_contrastive(checkpoint, target, folder)
    (folder / "README.md").write_text(contrastive_card(checkpoint, target, parity), encoding="utf-8")
    return {"run": checkpoint.run_file.id, "step": checkpoint.step, "parity": parity}

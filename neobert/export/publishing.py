"""Export of one run to a folder that is complete or absent."""

import shutil
from pathlib import Path
from typing import Literal

from neobert.data.mteb_tasks import OFFICIAL_TASKS
from neobert.files import json_bytes, publish_folder, temporary_sibling

Target = Literal["hf", "sentence-transformers"]


def export(
    run: Path,
    target: str,
    out: Path,
    step: int | None,
    with_code: bool | None = None,
) -> dict[str, object]:
    """Write `out` atomically; return its name, the run, the step and the measured deviations.

    with_code: whether to add the model's code; None stands for all pre-training runs without own parts.

    Raises:
        ValueError: `out` exists, a package is not installed, or the run is of another kind.
        MissingData: there is no such run or step.
        ParityOff: the export does not compute what the run computes.
    """
    if out.exists():
        raise ValueError(f"--out {out} exists: name a new folder or remove it")
    from neobert.executors.preparation import open_specified
    from neobert.export.card import model_card
    from neobert.export.checkpoint import instructions_of, measure, open_checkpoint, prompts_of, write
    from neobert.export.huggingface import write_remote_code
    from neobert.kinds.contrastive import ContrastiveRun
    from neobert.kinds.pretraining import PretrainingRun
    from neobert.own_code import SOURCES, sources_in
    from neobert.runs.run_file import read_run_file

    run_file = read_run_file(run.resolve())
    is_contrastive = isinstance(run_file.run, ContrastiveRun)
    sources = sources_in(run_file.run.recipe.model) if isinstance(run_file.run, PretrainingRun) else {}
    if with_code and (is_contrastive or sources):
        raise ValueError("--remote-code is for pre-training runs without own parts: leave it out")
    checkpoint = open_checkpoint(run, step)
    told, prompts = dict[str, str](), dict[str, str]()
    if isinstance(checkpoint.run, ContrastiveRun):
        own = {task.name: task for task in open_specified(run_file.source).embedding_tasks()}
        tasks = tuple({**OFFICIAL_TASKS, **own}.values())
        told = instructions_of(checkpoint.run, tasks)
        prompts = prompts_of(checkpoint, told)
    has_code = not (is_contrastive or sources) and with_code is not False
    temporary = temporary_sibling(out.resolve())
    temporary.mkdir(parents=True)
    try:
        write(checkpoint, target, temporary, prompts)
        if sources:
            (temporary / SOURCES).write_bytes(json_bytes(sources))
        parity = measure(checkpoint, target, temporary, {name: told[name] for name in prompts})
        if has_code:
            write_remote_code(temporary)
        card = model_card(checkpoint, target, parity, prompts, has_code=has_code)
        (temporary / "README.md").write_text(card, encoding="utf-8")
        publish_folder(temporary, out.resolve())
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return {"folder": str(out), "run": run_file.id, "step": checkpoint.step, "parity": parity}

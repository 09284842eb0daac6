"""Export of one run to a folder that is complete or absent."""

import shutil
from pathlib import Path
from typing import Literal

from neobert.data.mteb_tasks import OFFICIAL_TASKS
from neobert.files import json_bytes, publish_folder, temporary_sibling

Target = Literal["hf", "sentence-transformers"]


def export(run: Path, target: str, out: Path, step: int | None) -> dict[str, object]:
    """Write `out` atomically; return its name, the run, the step and the measured deviations.

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
    from neobert.kinds.contrastive import ContrastiveRun
    from neobert.kinds.pretraining import PretrainingRun
    from neobert.own_code import SOURCES, sources_in

    checkpoint = open_checkpoint(run, step)
    told, prompts = dict[str, str](), dict[str, str]()
    if isinstance(checkpoint.run, ContrastiveRun):
        own = {task.name: task for task in open_specified(checkpoint.run_file.source).embedding_tasks()}
        told = instructions_of(checkpoint.run, tuple({**OFFICIAL_TASKS, **own}.values()))
        prompts = prompts_of(checkpoint, told)
    temporary = temporary_sibling(out.resolve())
    temporary.mkdir(parents=True)
    try:
        write(checkpoint, target, temporary, prompts)
        if isinstance(checkpoint.run, PretrainingRun) and (sources := sources_in(checkpoint.run.recipe.model)):
            (temporary / SOURCES).write_bytes(json_bytes(sources))
        parity = measure(checkpoint, target, temporary, {name: told[name] for name in prompts})
        card = model_card(checkpoint, target, parity, prompts)
        (temporary / "README.md").write_text(card, encoding="utf-8")
        publish_folder(temporary, out.resolve())
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return {"folder": str(out), "run": checkpoint.run_file.id, "step": checkpoint.step, "parity": parity}

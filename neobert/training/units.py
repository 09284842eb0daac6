"""What units of work that train a model have in common: the processes they train in, and the curve they leave."""

import os
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from neobert.embeddings.specification import ContrastiveRun
from neobert.errors import DamagedFile
from neobert.files import clear_temporaries, line_bytes, mend_lines, read_lines, replace_file, set_aside
from neobert.grid.claims import Claim, acquire
from neobert.layout import Layout
from neobert.specifications import PretrainingRun, RunFile, read_run_file
from neobert.stopping import Stopped, StopRequest
from neobert.training import checkpoints
from neobert.training.attempt import Outcome, attempt
from neobert.training.checkpoints import Checkpoint
from neobert.training.course import Course
from neobert.training.processes import helpers_here, hosted
from neobert.training.tasks import Process, Task


def with_processes_here(run_file: RunFile) -> RunFile:
    """The same with as many processes as this one's job has."""
    task = Task.of_environment(os.environ)
    count = task.process.count if task else run_file.execution.processes
    return run_file.model_copy(update={"execution": run_file.execution.with_processes(count)})


def train(
    layout: Layout,
    run_file: RunFile,
    course: Callable[[Process], Course[Any]],
    folder: Path,
    claim: Claim,
    stop: StopRequest,
) -> Outcome:
    """Train to the end, in one process, in those that SLURM started with this one, or in those started here.

    Raises:
        Stopped: `stop` asked to before the end; all that was done is saved.
    """
    (folder / "checkpoints").mkdir(exist_ok=True)
    clear_temporaries(folder / "checkpoints")
    outcome = _train(layout, run_file, course, folder, claim, stop)
    if outcome.step < outcome.steps:
        message = f"asked to stop; saved after step {outcome.step} of {outcome.steps}"
        raise Stopped(message, progressed=outcome.step > outcome.begun)
    claim.check()
    return outcome


def _train(
    layout: Layout,
    run_file: RunFile,
    course: Callable[[Process], Course[Any]],
    folder: Path,
    claim: Claim,
    stop: StopRequest,
) -> Outcome:
    count, task = run_file.execution.processes, Task.of_environment(os.environ)

    def go() -> Outcome:
        return attempt(course(Process(0, count)), stop, claim, folder / "attempts" / claim.token)

    if count == 1:
        return go()
    with (
        helpers_here(layout, run_file.id, count) if task is None else nullcontext(task) as first,
        hosted(layout, first, run_file.id, claim.number, run_file.execution, stop),
    ):
        return go()


def last_checkpoint(layout: Layout, run_id: str) -> Checkpoint:
    """What a finished stage of pre-training or contrastive fine-tuning ended with.

    Raises:
        DamagedFile: that is damaged or gone. It and the record are set aside, so that the run goes on from the newest
            checkpoint before it; an earlier one never stands for the last.
    """
    folder = layout.trained(run_id)
    run = read_run_file(folder).run
    assert isinstance(run, PretrainingRun | ContrastiveRun)
    steps = run.recipe.stages[-1].steps if isinstance(run, PretrainingRun) else run.protocol.steps
    path = checkpoints.folder_of(folder / "checkpoints", steps)
    if checkpoints.is_valid(path):
        return Checkpoint(path, steps)
    claim = acquire(layout.claims(run_id))
    if claim is not None:
        with claim:  # looked at again: somebody may have trained it meanwhile
            damaged = [] if checkpoints.is_valid(path) else [folder / "done.json", path]
            for each in filter(os.path.lexists, damaged):
                set_aside(each, f"{path}, the last checkpoint, does not match its checksums")
    before = checkpoints.newest(folder / "checkpoints")
    raise DamagedFile(
        f"the last checkpoint of run {run_id} is damaged or gone: its own command trains it again from step "
        f"{before.step if before else 0} of {steps}"
    )


def merge_metrics(folder: Path) -> list[dict[str, Any]]:
    """One metrics.jsonl of all attempts: of lines for the same step the last attempt's counts.

    Files with damaged lines are set aside and go in without them.
    """
    lines: dict[tuple[int, bool], Any] = {}
    for path in sorted((folder / "attempts").glob("*/metrics.jsonl")):
        mend_lines(path, "step")
        for line in read_lines(path, "step"):
            lines[line["step"], "loss" in line] = line
    ordered = [lines[key] for key in sorted(lines)]
    replace_file(folder / "metrics.jsonl", b"".join(map(line_bytes, ordered)))
    return ordered


def training_loss(metrics: list[dict[str, Any]], steps: int) -> float | None:
    """The loss of the last step; None where its line was damaged."""
    return next((line["loss"] for line in metrics if line["step"] == steps and "loss" in line), None)

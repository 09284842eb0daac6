"""What follows from the flags that say where work runs. Torch-free."""

import argparse
import json
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from ablations.cluster_flags import FLAGS_OF_RESOURCES
from ablations.costs import Machine
from ablations.dispatch import Dispatch
from ablations.pieces import NamedRun, pieces_of
from ablations.scales import execution_at
from neobert.console import logs, output, table
from neobert.identity import plain
from neobert.offline import offline_environment
from neobert.processes import REPOSITORY, available_cores, thread_variables, visible_gpus
from neobert.runs.layout import Layout
from neobert.runs.specifications import Execution
from neobert.slurm.profile import Profile, Submission, read_profile
from neobert.slurm.submit import answers, is_inside_job, refuse_folder

Place = Literal["here", "slurm"]
SLURM_ALONE = ("partition", "account", "qos", "constraint", "memory_gb", "hours", "sbatch", "max_running")
"""Flags that mean nothing where no job is submitted."""


def place_of(options: argparse.Namespace) -> Place:
    """Where the work runs.

    Raises:
        ValueError: SLURM is asked for inside a job, or where none answers, or this machine for what it has not.
    """
    place = _place_of(options)
    if place == "here":
        refuse_here(options)
    return place


def refuse_here(options: argparse.Namespace) -> None:
    """Check that this machine can do what flags and profile ask for.

    Raises:
        ValueError: it cannot; says what it has.
    """
    for flag in SLURM_ALONE if not is_inside_job() else ():
        if getattr(options, flag):
            name = f"--{flag.replace('_', '-')}"
            raise ValueError(f"{name} is asked of SLURM, and this runs here: leave it out, or use --cluster slurm")
    wanted = profile_of(options).pretrain
    if wanted.nodes > 1:
        raise ValueError(f"{wanted.nodes} nodes are asked for, and this runs here, on one: use --cluster slurm")
    if options.engine in ("zero1", "zero2") and wanted.tasks == 1:
        raise ValueError(f"--engine {options.engine} splits a model's training among GPUs: say how many with --gpus")
    if wanted.tasks == 1 and options.workers is None:
        return
    if gpus := len(visible_gpus()):
        for what, count in (("GPUs for a run are", wanted.tasks), ("workers are", options.workers or 1)):
            if count > gpus:
                has = "1 GPU" if gpus == 1 else f"{gpus} GPUs"
                raise ValueError(
                    f"{count} {what} asked for, and this machine has {has}: each process has one of its own"
                )
    elif wanted.tasks > available_cores():
        raise ValueError(
            f"{wanted.tasks} GPUs or processes are asked for, and this machine has no GPU and {available_cores()} cores"
        )


def _place_of(options: argparse.Namespace) -> Place:
    if options.cluster == "here" or (options.cluster == "auto" and is_inside_job()):
        return "here"
    if options.cluster == "slurm" and is_inside_job():
        raise ValueError("--cluster slurm inside a job would submit jobs from a job: use --cluster here")
    if answers():
        return "slurm"
    if options.cluster == "auto":
        if shutil.which("sbatch"):
            logs().print("SLURM does not answer (sinfo): this runs here", markup=False)
        return "here"
    raise ValueError(
        "--cluster slurm: sbatch is not there or the controller does not answer (sinfo): use --cluster here"
    )


def profile_of(options: argparse.Namespace) -> Profile:
    """The profile that flags and file make up.

    Raises:
        MissingData: there is no such file.
        ValueError: a key or value is refused.
    """
    flags: dict[str, Any] = {field: getattr(options, flag) for flag, field in FLAGS_OF_RESOURCES.items()}
    flags["sbatch"] = tuple(options.sbatch) if options.sbatch else None
    name = options.cluster_profile
    if name is None:
        return read_profile(None, flags)
    is_file = name.endswith(".toml") or "/" in name
    return read_profile(Path(name) if is_file else REPOSITORY / "clusters" / f"{name}.toml", flags)


def execution_on(profile: Profile, execution: Execution) -> Execution:
    """How a run executes as the pre-training job of a profile; a scale that pins one thread keeps it.

    Raises:
        ValueError: the engine cannot serve so many processes.
    """
    resources = profile.pretrain
    if resources.engine == "single" and resources.tasks > 1:
        raise ValueError(f"engine single trains in one process, and the job has {resources.tasks}: ddp, zero1 or zero2")
    changes: dict[str, Any] = {"processes": resources.tasks, "engine": resources.engine}
    if execution.threads > 1 and resources.cpus_per_task is not None:
        changes["threads"] = resources.cpus_per_task
    if resources.micro_batch_tokens is not None:
        changes["micro_batch_tokens"] = resources.micro_batch_tokens
    return execution.model_copy(update=changes)


def machine_on(profile: Profile, execution: Execution) -> Machine:
    """What a plan reckons with: the GPUs of the profile's pre-training job."""
    known = profile.pretrain
    return replace(
        Machine.of(execution),
        gpu_memory_gb=known.gpu_memory_gb,
        tokens_per_second_per_gpu=known.tokens_per_second_per_gpu,
        gpu=known.gpu,
    )


def planned_machine(options: argparse.Namespace) -> Machine:
    """The same for a plan that looks at no cluster: what flags and profile say.

    Raises:
        ValueError: this machine is meant, and has not what they ask for.
    """
    if options.cluster == "here":
        refuse_here(options)
    profile = profile_of(options)
    return machine_on(profile, execution_on(profile, execution_at(options.scale)))


def dispatch_of(options: argparse.Namespace, layout: Layout, execution: Execution) -> tuple[Dispatch, Execution]:
    """How jobs are made under the flags, and how what would execute so here does in them.

    Raises:
        ValueError: the profile, or the path of the folder of runs, is refused.
    """
    refuse_folder(layout.root)
    profile = profile_of(options)
    execution = execution_on(profile, execution)
    environment = thread_variables(execution.threads) | offline_environment()
    return Dispatch(layout, profile, environment, options.max_running), execution


def preview(options: argparse.Namespace, layout: Layout, runs: Sequence[NamedRun]) -> str:
    """The sbatch files that a submission would write."""
    dispatch, _ = dispatch_of(options, layout, execution_at(options.scale))
    return dispatch.preview(pieces_of(layout, runs, dispatch.profile))


def print_submissions(submissions: Sequence[Submission], *, as_json: bool) -> None:
    """What was submitted."""
    if as_json:
        print(json.dumps([plain(submission) for submission in submissions], indent=1))
        return
    cells = [
        (each.job, each.kind, each.name, str(each.elements or 1), ", ".join(each.after) or "—", each.logs)
        for each in submissions
    ]
    columns = ("job", "kind", "name", "workers", "after", "logs")
    output().print(
        table(f"{len(cells)} jobs submitted; python ablations/status.py shows how far they are", columns, cells)
    )

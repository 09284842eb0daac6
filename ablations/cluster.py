"""What follows from the flags that say where work runs. Torch-free."""

import argparse
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from ablations.cluster_flags import FLAGS_OF_RESOURCES
from ablations.costs import Machine
from ablations.dispatch import Dispatch
from ablations.pieces import NamedRun, pieces_of
from ablations.scales import execution_at
from neobert.console import output, table
from neobert.identity import plain
from neobert.launching.here import REPOSITORY, thread_variables
from neobert.launching.profile import Profile, read_profile
from neobert.launching.slurm import answers, is_inside_job, refuse_folder
from neobert.launching.submissions import Submission
from neobert.layout import Layout
from neobert.offline import offline_environment
from neobert.specifications import Execution

Place = Literal["here", "slurm"]


def place_of(options: argparse.Namespace) -> Place:
    """Where the work runs.

    Raises:
        ValueError: SLURM is asked for inside a job, or where none answers.
    """
    if options.cluster == "here" or (options.cluster == "auto" and is_inside_job()):
        return "here"
    if options.cluster == "slurm" and is_inside_job():
        raise ValueError("--cluster slurm inside a job would submit jobs from a job: use --cluster here")
    if answers():
        return "slurm"
    if options.cluster == "auto":
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
    """The same for a plan that looks at no cluster: what flags and profile say unless this machine is meant."""
    profile, execution = profile_of(options), execution_at(options.scale)
    return machine_on(profile, execution if options.cluster == "here" else execution_on(profile, execution))


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

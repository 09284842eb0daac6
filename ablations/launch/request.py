"""What a command or a Python program requests, as values that nothing changes later.

`Selection` says what is planned and `Place` where it runs; how runs execute is `neobert.execution.Execution`. The
commands make them of their flags (`ablations.launch.flags`), and `ablations.api` makes them of arguments.
"""

import shutil
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from ablations.ladders import Ladder
from ablations.names import DesignKind
from ablations.recipe_runs import EVERYTHING, EmbeddingChoice
from ablations.scales import Scale
from neobert.console import logs
from neobert.execution import Execution
from neobert.processes import available_cores, visible_gpus
from neobert.runs.tracking import TrackerName
from neobert.slurm.profile import Profile, read_profile
from neobert.slurm.submit import answers, is_inside_job

SLURM_ONLY = ("partition", "account", "qos", "constraint", "memory_gb", "hours", "sbatch")
"""Resources that only apply when jobs are submitted."""


def gpus_in_words(count: int) -> str:
    """Return "1 GPU" or "2 GPUs"."""
    return f"{count} GPU{'s' * (count != 1)}"


@dataclass(frozen=True)
class Selection:
    """What is planned, on which data, in which folder of runs.

    `data` is synthetic, hub or a folder; None means synthetic text, and at the paper's scale the published data of a
    plan. `variants` are names; a `design` or a `model`, an external encoder, is in their place. Without
    `finetuning_seeds` a variant is fine-tuned with the seed of its pre-training, and a model with seed 0.
    """

    ladder: Ladder
    scale: Scale
    data: str | None = None
    runs: Path = Path("runs")
    variants: tuple[str, ...] = ()
    design: DesignKind | None = None
    model: str | None = None
    trusts_code: bool = False
    seeds: tuple[int, ...] = (0,)
    finetuning_seeds: tuple[int, ...] = ()
    stages: tuple[str, ...] = ("pretraining", "glue")
    embedding: EmbeddingChoice = EVERYTHING

    def named_data(self, *, only_shows: bool) -> str:
        """Return the data by name. Raises ValueError if runs at the paper's scale name none, as they would reproduce
        nothing on synthetic text."""
        if self.data is not None:
            if not self.data.strip():
                raise ValueError("--data is empty: give synthetic, hub or a folder")
            return self.data
        if self.scale == "paper" and not only_shows:
            raise ValueError(
                "--scale paper needs --data: download the paper's data with `python ablations/prefetch.py --variant "
                "NAME --scale paper --data-dir DIR`, then add --data DIR (or --data synthetic, which reproduces "
                "nothing)"
            )
        return "hub" if self.scale == "paper" else "synthetic"


@dataclass(frozen=True)
class Place:
    """Where the work runs, and with what.

    `cluster` is "here" for this machine; "auto" means SLURM if it answers. `profile` has the resources of each kind of
    job, and `named` are those that were given one by one, and not by a file. `workers` is the number of processes at a
    time here, `max_running` that of elements of an array on SLURM. `track` is a tracker of metrics.
    """

    cluster: Literal["auto", "here", "slurm"] = "auto"
    profile: Profile = field(default_factory=lambda: read_profile(None, {}))
    named: frozenset[str] = frozenset()
    workers: int | None = None
    max_running: int | None = None
    track: TrackerName | None = None

    def decided(self) -> "Place":
        """Return the place with "here" or "slurm" for "auto". Raises ValueError if SLURM is requested inside a job or
        does not answer, or if SLURM or this machine lacks what is requested."""
        if self.cluster == "slurm" and is_inside_job():
            raise ValueError("--cluster slurm inside a job would submit jobs from a job: use --cluster here")
        if self.cluster != "here" and not is_inside_job():
            if answers():
                if self.workers is not None:
                    raise ValueError("--workers is for local runs: use --max-running N on SLURM, or --cluster here")
                return replace(self, cluster="slurm")
            if self.cluster == "slurm":
                raise ValueError(
                    "--cluster slurm: sbatch is not there or the controller does not answer (sinfo): use --cluster here"
                )
            if shutil.which("sbatch"):
                logs().print("SLURM does not answer (sinfo): this runs here", markup=False)
        self.refuse_here()
        return replace(self, cluster="here")

    def refuse_here(self) -> None:
        """Raise ValueError if this machine lacks what is requested."""
        of_slurm = [name for name in SLURM_ONLY if name in self.named]
        of_slurm += ["max_running"] if self.max_running is not None else []
        if of_slurm and not is_inside_job():
            raise ValueError(
                f"--{of_slurm[0].replace('_', '-')} is a SLURM option: use --cluster slurm or leave it out"
            )
        wanted = self.profile["pretrain"]
        if wanted.nodes > 1:
            raise ValueError(f"{wanted.nodes} nodes need --cluster slurm: this machine is one node")
        if wanted.tasks == 1 and "engine" in self.named and wanted.engine in ("zero1", "zero2"):
            raise ValueError(f"--engine {wanted.engine} splits a model's training among GPUs: say how many with --gpus")
        if wanted.tasks == 1:
            return  # one process fits everywhere: no need to query torch for GPUs
        gpus, cores = len(visible_gpus()), available_cores()
        if wanted.tasks > (gpus or cores):
            has = gpus_in_words(gpus) if gpus else f"no GPU and {cores} cores"
            raise ValueError(f"{wanted.tasks} GPUs for a run are requested, but this machine has {has}")

    def execution(self, execution: Execution) -> Execution:
        """Return an execution with the processes of the profile's pre-training job; a pinned thread stays one. Raises
        ValueError if the engine does not support so many."""
        resources = self.profile["pretrain"]
        if resources.engine == "single" and resources.tasks > 1:
            raise ValueError(
                f"engine single trains in one process, and the job has {resources.tasks}: ddp, zero1 or zero2"
            )
        changes: dict[str, Any] = {"processes": resources.tasks, "engine": resources.engine}
        if execution.threads > 1 and resources.cpus_per_task is not None:
            changes["threads"] = resources.cpus_per_task
        if resources.micro_batch_tokens is not None:
            changes["micro_batch_tokens"] = resources.micro_batch_tokens
        return execution.model_copy(update=changes)

"""Cluster profiles: the resources of jobs, from a TOML file per cluster and flags. Never part of a run's identity.

A file has keys of `Resources`; tables named after a kind of job (`[pretrain]`, `[glue]`, `[mteb]`, `[prepare]`)
override them for that kind. Without a file only time is requested, and SLURM's defaults apply.
"""

import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, get_args

from pydantic import Field, PositiveFloat, PositiveInt, ValidationError

from neobert.errors import MissingData, did_you_mean
from neobert.recipe import EngineWord, Value
from neobert.runs.work import JobKind

JOB_KINDS: tuple[JobKind, ...] = get_args(JobKind)


class Resources(Value):
    """Resources that one job requests from SLURM; None leaves the choice to the cluster.

    A job runs one task per GPU, or `tasks_per_node` without GPUs. `grace_seconds` is how long before the time limit a
    job is warned to save. `gpu_memory_gb`, `gpu` and `tokens_per_second_per_gpu` are used to estimate costs. `sbatch`
    has further lines such as "--mail-type=FAIL"; `setup` has shell lines that run before the job's tasks.
    """

    partition: str | None = None
    account: str | None = None
    qos: str | None = None
    constraint: str | None = None
    nodes: int = Field(1, ge=1, le=10_000)
    gpus_per_node: int = Field(0, ge=0, le=1_000)
    tasks_per_node: PositiveInt = 1
    cpus_per_task: PositiveInt | None = None
    memory_gb: float | None = Field(None, gt=0, le=1e6)
    hours: float = Field(24.0, gt=0, le=10_000)
    grace_seconds: PositiveInt = 180
    micro_batch_tokens: PositiveInt | None = None
    engine: EngineWord = "ddp"
    points_per_worker: PositiveInt = 12
    gpu: str | None = None
    gpu_memory_gb: PositiveFloat | None = None
    tokens_per_second_per_gpu: PositiveFloat | None = None
    sbatch: tuple[str, ...] = ()
    setup: tuple[str, ...] = ()

    @property
    def tasks_on_a_node(self) -> int:
        """One task per GPU, or `tasks_per_node` without GPUs."""
        return self.gpus_per_node or self.tasks_per_node

    @property
    def tasks(self) -> int:
        """Number of processes of the job."""
        return self.nodes * self.tasks_on_a_node

    def with_masked_exports(self) -> "Resources":
        """Return a copy to be shown or stored: the values of `export` lines, which may be secrets, are masked."""
        return self.model_copy(update={"sbatch": tuple(map(mask_export, self.sbatch))})

    def for_one_task(self, *, gpus: bool) -> "Resources":
        """Return a copy for a job of one task, with at most one GPU."""
        used = min(1, self.gpus_per_node) if gpus else 0
        return self.model_copy(update={"nodes": 1, "tasks_per_node": 1, "gpus_per_node": used})


def mask_export(line: str) -> str:
    """Return an sbatch line with everything behind the first value of an `export` masked."""
    return re.sub(r"(\bexport[=\s][^=]*=).*", r"\1…", line)


Profile = Mapping[JobKind, Resources]
"""Resources of each kind of job on one cluster."""


def read_profile(path: Path | None, flags: Mapping[str, Any]) -> Profile:
    """Read a profile from a file (None: an empty one), overridden by the values of `flags` that are not None.

    Raises:
        MissingData: there is no such file.
        ValueError: it is not TOML, or a key or value is invalid; the message names file and key.
    """
    tree = {} if path is None else _read(path)
    place = "flags" if path is None else str(path)
    common = {key: value for key, value in tree.items() if key not in JOB_KINDS}
    given = {key: value for key, value in flags.items() if value is not None}
    if wrong := [kind for kind in JOB_KINDS if not isinstance(tree.get(kind, {}), dict)]:
        raise ValueError(f"{place}: {wrong[0]} must be a table, [{wrong[0]}] with keys below it")
    chosen = {kind: _resources(common | tree.get(kind, {}) | given, place, kind) for kind in JOB_KINDS}
    return {
        "prepare": chosen["prepare"].for_one_task(gpus=False),
        "pretrain": chosen["pretrain"],
        "glue": chosen["glue"].for_one_task(gpus=True),
        "mteb": chosen["mteb"].for_one_task(gpus=True),
    }


def _read(path: Path) -> dict[str, Any]:
    if not path.is_file():
        known = sorted(file.stem for file in path.parent.glob("*.toml"))
        raise MissingData(f"there is no cluster profile {path}: {did_you_mean(path.stem, known)}")
    try:
        return tomllib.loads(path.read_text(encoding="utf-8-sig"))
    except (ValueError, RecursionError) as error:  # of the syntax, or nested too deeply
        raise ValueError(f"{path} is no TOML: {error}") from error


def _resources(tree: Mapping[str, Any], place: str, kind: JobKind) -> Resources:
    if unknown := sorted(tree.keys() - Resources.model_fields.keys()):
        hint = did_you_mean(unknown[0], [*Resources.model_fields, *JOB_KINDS])
        raise ValueError(f"{place}: unknown key {unknown[0]!r}: {hint}")
    try:
        return Resources.model_validate(tree)
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(map(str, first["loc"]))
        may_be_secret = key.startswith(("setup", "sbatch"))
        shown = key if may_be_secret else f"{key} = {first['input']!r}"
        raise ValueError(f"{place} [{kind}]: {shown}: {first['msg']}") from error

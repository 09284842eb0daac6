"""What something costs: memory of a GPU, GPU-hours, disk; and sums of it. Torch-free."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Cost:
    """Of one unit or several. None is unknown, 0 nothing to spend; `sources` say where the hours come from, `uncounted`
    names what is in them for nothing, since nobody knows how many texts it reads."""

    memory_gb: float | None = None
    gpu_hours: float | None = 0.0
    sources: tuple[str, ...] = ()
    disk_gb: float | None = 0.0
    uncounted: tuple[str, ...] = ()

    def summary(self) -> dict[str, Any]:
        """The keys of `--dry-run --json`."""
        return {
            "memory_gb_per_gpu": _rounded(self.memory_gb),
            "gpu_hours": _rounded(self.gpu_hours),
            "gpu_hours_source": "; ".join(self.sources) or None,
            "gpu_hours_without": list(self.uncounted),
            "disk_gb": _rounded(self.disk_gb),
        }


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 3)


def together(costs: Iterable[Cost]) -> Cost:
    """Memory is the most of all, the rest a sum; a sum with something unknown in it is unknown."""
    listed = list(costs)
    memories = [cost.memory_gb for cost in listed if cost.memory_gb is not None]
    sources = dict.fromkeys(source for cost in listed for source in cost.sources)
    return Cost(
        max(memories, default=None),
        sum_of_known(cost.gpu_hours for cost in listed),
        tuple(sources),
        sum_of_known(cost.disk_gb for cost in listed),
        tuple(dict.fromkeys(name for cost in listed for name in cost.uncounted)),
    )


def sum_of_known(values: Iterable[float | None]) -> float | None:
    """The sum; None where one is."""
    known = list(values)
    return None if None in known else float(sum(value for value in known if value is not None))

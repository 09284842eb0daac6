"""The 95 % interval of a mean over seeds of pre-training, and the records behind a mean."""

from collections.abc import Sequence

import numpy as np

from reports.cells import Estimate, Scored
from reports.inference import t_interval
from reports.pairs import by_pretraining_seed

Interval = tuple[float, float]


def seed_interval(estimate: Estimate) -> Interval | None:
    """The t interval over seeds of pre-training, df = seeds − 1; None for a single one."""
    values = np.array(list(by_pretraining_seed(estimate.by_seeds).values()))
    if len(values) < 2:
        return None
    low, high = t_interval(values)
    return float(low), float(high)


def trial_ids(row: Scored, tasks: Sequence[str]) -> tuple[str, ...]:
    """The trials behind a row's mean over tasks: those of the seeds that have all of them."""
    mean = row.mean_over(tasks)
    counted = set(mean.by_seeds) if mean else set()
    ids = {trial for task in tasks for seeds, trial in row.cells[task].ids.items() if seeds in counted}
    return tuple(sorted(ids))

"""The committed peaks of pretended steps, which `--dry-run` shows, are those of this code."""

import csv

from ablations.launch.costs import PRETENDED_PEAKS
from benchmarks.peaks import peak_of_step, stages_of_the_ladder
from tests.ablations.papers_ladder import PAPERS_LADDER
from tests.gpu_dry.conftest import Pretend


def test_every_stage_of_the_ladder_has_a_peak_and_the_smallest_is_what_a_step_keeps_now(pretend: Pretend) -> None:
    """Where this fails, `python -m benchmarks.peaks --write` makes the peaks anew. Variants beside the paper's may lack
    one."""
    with PRETENDED_PEAKS.open(newline="") as file:
        peaks = {row["step"]: int(row["peak_bytes"]) for row in csv.DictReader(file)}
    steps = stages_of_the_ladder()
    papers = {step for step, (names, *_) in steps.items() if {name.split()[0] for name in names} & {*PAPERS_LADDER}}
    assert papers <= peaks.keys() <= steps.keys()
    smallest = min(peaks, key=lambda step: peaks[step])
    _, recipe, position_table, rows = steps[smallest]
    assert pretend(peak_of_step, recipe, position_table, rows) == peaks[smallest]

"""Our numbers beside the paper's: verdicts only where they can be compared, and whether the order is the paper's."""

import json
import math
from pathlib import Path

import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ablations.loading import papers
from ablations.scales import Scale
from neobert.kinds.glue import GlueStudy
from neobert.recipe import Point
from reports.figures import published
from reports.figures.comparison import (
    NOT_RESOLVABLE,
    OFF,
    PublishedNumber,
    average_tolerance,
    compare_numbers,
    judge,
    task_error,
    tolerance_of,
)
from tests.reports.made_up_study import TASK_SHIFTS, MadeUpStudy, figures

PRINTED = {name: bar.average for name, bar in published.figure1(papers()).items()}


class Replica(MadeUpStudy):
    """A study at paper scale on published data that scores what the paper prints, and `levels` more."""

    def score(self, name: str, study: GlueStudy, point: Point) -> float:
        return (PRINTED[name] + self.levels[name] + TASK_SHIFTS[study.task]) / 100


def replica(root: Path, off: dict[str, float] | None = None, data: str = "hub", scale: Scale = "paper") -> Replica:
    return Replica(root, scale=scale, data=data, levels=dict.fromkeys(PRINTED, 0.0) | (off or {}))


def numbers_of(study: MadeUpStudy) -> dict[str, PublishedNumber]:
    """By name."""
    return {number.name: number for number in compare_numbers(study.read())}


def test_tolerances_follow_from_the_development_sets() -> None:
    assert task_error("rte", 90.0) == pytest.approx(100 * math.sqrt(0.09 / 277))
    assert task_error("stsb", 90.0) == pytest.approx(100 * 0.19 / math.sqrt(1500))
    assert tolerance_of(1.0) == pytest.approx(1.96 * math.sqrt(2) + 0.05)
    assert 0.9 < average_tolerance(papers(), 89.0) < 1.2 < tolerance_of(task_error("rte", 91.3))


def test_at_paper_scale_on_the_papers_data_a_replica_is_reproduced(tmp_path: Path) -> None:
    study = replica(tmp_path)
    study.write(["M0", "M1", "M2"])
    numbers = numbers_of(study)
    assert set(numbers) == {"M0", "M1", "M2", "M2 against M1"}
    assert {(each.published_in, each.verdict) for each in numbers.values()} == {("Figure 1", "reproduced")}
    first, change = numbers["M0"], numbers["M2 against M1"]
    assert first.difference == pytest.approx(0) and len(first.records) == 8
    assert change.ours == pytest.approx(100 * (84.0 / 81.1 - 1)) and change.unit == "percent"


def test_a_number_off_by_more_than_the_tolerance_exits_4(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    study = replica(tmp_path / "runs", {"M1": 1.5})
    study.write(["M0", "M1"])
    assert figures(study.root, tmp_path / "out") == 0
    assert figures(study.root, tmp_path / "out", "--compare") == 4
    assert "off: M1" in capsys.readouterr().out
    compared = pd.read_csv(tmp_path / "out" / "paper-hub" / "comparison.csv")
    assert list(compared.verdict) == ["reproduced", "not reproduced"]
    assert {path.suffix for path in (tmp_path / "out" / "paper-hub").glob("comparison.*")} == {".md", ".csv"}


@given(st.floats(-9, 9), st.floats(-9, 9), st.floats(0.01, 9))
def test_a_change_is_reproduced_only_with_its_sign(ours: float, paper: float, tolerance: float) -> None:
    """Within the tolerance, a change that no tolerance can tell from zero is neither reproduced nor off."""
    verdict = judge(ours, paper, tolerance, "percent")
    assert (verdict == OFF) == (abs(ours - paper) > tolerance)
    if verdict == "reproduced":
        assert ours * paper > 0
    if verdict == "not resolvable":
        assert abs(paper) <= tolerance


def test_a_printed_change_within_its_tolerance_of_zero_is_not_resolvable(tmp_path: Path) -> None:
    """The paper prints −0.5 % for M4, and ours is +0.6 %: a tolerance of 1.8 % cannot tell them apart."""
    study = replica(tmp_path, {"M4": 1.0})
    study.write(["M2", "M4"])
    change = numbers_of(study)["M4 against M2"]
    assert change.ours == pytest.approx(100 * ((83.5 + 1.0) / 84.0 - 1)) and change.paper == -0.5
    assert change.tolerance == pytest.approx(1.8, rel=0.05)
    assert (change.verdict, change.why) == ("not resolvable", NOT_RESOLVABLE)


def test_another_scale_is_never_off(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    study = replica(tmp_path / "runs", scale="smoke", data="synthetic")
    study.write(["M0", "M1", "M2"])
    assert figures(study.root, tmp_path / "out", "--compare", "--json") == 0
    (summary,) = json.loads(capsys.readouterr().out)
    assert summary["comparison"]["verdicts"] == {"not comparable at this scale": 4}
    assert all(Path(name).is_file() for name in summary["files"])


def test_other_data_an_incomplete_grid_and_a_fallback_are_not_comparable(tmp_path: Path) -> None:
    other = replica(tmp_path / "other", {"M0": 9.0}, data="texts")
    other.write(["M0"])
    number = numbers_of(other)["M0"]
    assert number.verdict == "not comparable" and number.why.startswith("other data")

    partial = replica(tmp_path / "partial", {"M0": 9.0})
    partial.write(["M0"])
    next(partial.root.glob("glue/cola/*.json")).unlink()
    number = numbers_of(partial)["M0"]
    assert number.verdict == "not comparable" and number.why == "the grid of M0 is incomplete"


def test_table_3_is_compared_checkpoint_by_checkpoint(tmp_path: Path) -> None:
    study = replica(tmp_path)
    study.pretrain("M10")
    for of_task in study.studies("M10"):
        if of_task.task == "cola":
            study.search("M10", of_task)
    assert list(numbers_of(study)) == ["NeoBERT-1024 CoLA", "NeoBERT-4096 CoLA"]

"""Records of several ladders in one folder: recipes are matched, names are not, and what is left out is told."""

import shutil
import statistics
from pathlib import Path

import pytest

from ablations import loading
from ablations.ladders import Ladder
from ablations.loading import papers
from neobert.errors import MissingData
from reports.differences import LADDER, MARGINS, find_steps
from reports.frames import read_frames
from reports.rows import read_study
from tests.reports.made_up_study import MadeUpStudy, by_place, change_record, facts_of
from tests.reports.measurements import embed

OWN = """
from ablations.ladder import M0, MASKING_20, ROTARY
X1 = M0.derive("M1", MASKING_20)
X2 = X1.derive("X2", ROTARY)
"""


@pytest.fixture
def own(tmp_path: Path) -> Ladder:
    """It calls another variant M1 than the paper does."""
    path = tmp_path / "other.py"
    path.write_text(OWN)
    return loading.load(str(path))


def test_recipes_are_matched_and_names_are_not(study: MadeUpStudy, own: Ladder) -> None:
    """A run that only another ladder has is told with the ladder that shows it, whatever its label says."""
    labels = {"variants": ["M1"], "scale": study.scale, "data": study.data, "ladder": "other.py"}
    study.pretrain("M0", labels=labels)
    study.pretrain("M1")
    theirs = study.on(own)
    theirs.levels["X2"] = 60.0
    group = theirs.read()
    assert len(group.last_rows["M0"].runs) == 1 and group.last_rows["M1"].runs.empty
    assert "1 pre-training run(s) planned on the paper's ladder: leave out --ladder to include them" in group.problems
    group = study.read()
    assert len(group.last_rows["M0"].runs) == len(group.last_rows["M1"].runs) == 1 and not group.problems
    theirs.pretrain("X2", labels=labels)
    group = study.read()
    assert len(group.last_rows["M1"].runs) == 1 and group.problems == (
        "1 pre-training run(s) planned on the ladder other.py: pass --ladder and that file to include them",
    )
    assert len(theirs.read().last_rows["X2"].runs) == 1


def test_a_ladder_averages_over_the_tasks_of_glue_that_it_names(study: MadeUpStudy, tmp_path: Path) -> None:
    """Figure 1, Table 3 and the differences."""
    study.write(["M0", "M1"], seeds=range(3))
    file = tmp_path / "three.py"
    file.write_text("from ablations.ladder import M0, M1\n__all__ = ['M0', 'M1']\nTASKS = ('sst2', 'cola', 'qqp')\n")
    theirs = study.on(loading.load(str(file)))
    found, tables = theirs.read(), theirs.tables()
    means = {
        name: statistics.fmean(row.cells[task].score.mean for task in ("sst2", "cola", "qqp"))  # type: ignore[union-attr]
        for name, row in found.last_rows.items()
    }
    step = by_place(found)[LADDER, "M1 − M0", "mean of SST-2, CoLA, QQP"]
    assert step.difference.mean == pytest.approx(means["M1"] - means["M0"]) and step.difference.n == 3
    assert step.measure.margin == MARGINS["GLUE average"]
    for name in ("table3", "figure1"):
        averages = {
            row["variant"]: row.get("average") or row["score"] for row in facts_of(tables[name]) if row["variant"]
        }
        assert {name: float(each) for name, each in averages.items()} == pytest.approx(means)
    assert tables["table3"].header[2:6] == ("SST-2", "CoLA", "QQP", "Average")
    assert "trial(s) on MNLI, which is not among the ladder's TASKS" in " ".join(found.problems)
    file.write_text("from ablations.ladder import M0, M1\n__all__ = ['M0', 'M1']\nTASKS = ('cola',)\n")
    steps = find_steps(study.on(loading.load(str(file))).read())
    assert [step.measure.name for step in steps] == ["CoLA", "held-out loss"], "one task is its own mean"


def test_what_goes_by_its_labels_is_of_its_ladder_alone(study: MadeUpStudy, own: Ladder) -> None:
    """Embeddings have the names of their labels, external models the protocol of a ladder, runs a scale."""
    study.write(["M0"])
    path = embed(study, "M0", "a", "sts", 0.5)
    assert len(read_frames(papers(), study.root).by_kind["mteb"]) == 1
    change_record(path, lambda record: record["labels"].update(ladder="other.py"))
    evidence = read_frames(papers(), study.root)
    assert evidence.by_kind["mteb"].empty
    assert "1 record(s) planned on the ladder other.py" in " ".join(evidence.problems)
    evidence = read_frames(own, study.root)
    assert len(evidence.by_kind["mteb"]) == 1 and not read_study(evidence, "smoke", "synthetic").problems
    for trial in list(study.root.glob("glue/*/*.json")):
        change_record(trial, lambda record: record["labels"].update(model="BERT", ladder="other.py"))
    assert len(read_frames(papers(), study.root).trials) == 0
    shutil.rmtree(study.root)
    for name in ("M1", "M2"):
        study.pretrain(name, labels={"variants": ["A"], "scale": "tiny", "data": "synthetic", "ladder": "other.py"})
    with pytest.raises(MissingData, match=r"2 record\(s\) planned on the ladder other.py: pass --ladder"):
        read_frames(papers(), study.root)

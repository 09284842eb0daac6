"""Runs of one configuration on two machines: the difference beside the standard deviation of seeds."""

from pathlib import Path

import pytest

from neobert.runs.layout import Layout
from reports import make_figures
from reports.evidence import read_evidence
from reports.machines import find_repeated, machines_table
from tests.reports.made_up_study import Study, change_record, undrawn_figures

pytestmark = pytest.mark.usefixtures("papers_ladder")


def on_machine(root: Path, cpu: str, more: float = 0.0, seeds: range = range(4)) -> Study:
    """M0 and M1 of a processor, with losses that are larger by `more` for even seeds and smaller for odd ones."""
    study = Study(root)
    for name in ("M0", "M1"):
        for seed in seeds:
            study.pretrain(name, seed, machine={"cpu": cpu, "cpu_capability": "AVX2"})
            (run,) = study.runs(name, seed)

            def shift(record: dict[str, object], by: float = more * (-1) ** seed) -> None:
                scores = record["scores"]
                assert isinstance(scores, dict)
                scores["heldout_loss"] = {corpus: loss + by for corpus, loss in scores["heldout_loss"].items()}

            change_record(Layout(root).pretraining(run.id) / "done.json", shift)
    return study


def test_differences_of_machines_stand_beside_the_spread_of_seeds(tmp_path: Path) -> None:
    here, there = on_machine(tmp_path / "a", "one"), on_machine(tmp_path / "b", "two", 0.01, range(1, 3))
    repeated = find_repeated(here.group(), read_evidence(here.root), read_evidence(there.root))
    first = repeated[0]
    assert [each.name for each in repeated] == ["M0", "M1"]
    assert first.differences == pytest.approx({1: -0.01, 2: 0.01}) and first.mean == pytest.approx(0, abs=1e-9)
    own_loss = here.group().last_rows["M0"].own_loss
    assert own_loss is not None and first.deviation == own_loss[1].spread
    assert first.deviation is not None and first.ratio == pytest.approx(0.01 / first.deviation)
    assert (first.here, first.there) == ("one with AVX2", "two with AVX2")
    table = machines_table(repeated, here.group())
    assert not any("same processor" in note for note in table.notes)
    same = find_repeated(here.group(), read_evidence(here.root), read_evidence(here.root))
    assert any("same processor: M0, M1" in note for note in machines_table(same, here.group()).notes)


def test_the_command_takes_another_machines_folder_and_refuses_one_without_a_common_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    here, there = on_machine(tmp_path / "a", "one"), on_machine(tmp_path / "b", "two", 0.01, range(1, 3))
    other = Study(tmp_path / "c")
    other.pretrain("M2")
    flags = ["--runs", str(here.root), "--out", str(tmp_path / "out"), "--other-machine"]
    with undrawn_figures():
        assert make_figures.main([*flags, str(there.root)]) == 0
        assert make_figures.main([*flags, str(other.root)]) == 3
    assert (tmp_path / "out" / "smoke-synthetic" / "machines.csv").read_text().count("two with AVX2") == 2
    assert "no run of" in capsys.readouterr().err

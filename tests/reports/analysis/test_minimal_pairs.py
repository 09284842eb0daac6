"""Minimal pairs of BLiMP in reports: compared over paradigms and without a corpus, by phenomenon beside people."""

from statistics import fmean

import numpy as np
import pytest
from ablations.declarations import MINIMAL_PAIRS, PROTOCOL, Measure

from neobert.data.blimp import PARADIGMS
from neobert.kinds.readouts import BLIMP
from reports.analysis.deltas import find_deltas
from reports.figures.forests import forest_of_readouts
from tests.reports.made_up_study import Study, by_place, facts_of
from tests.reports.measurements import answer, ask

PAIRS = 10
PHENOMENA = dict.fromkeys(each.phenomenon for each in PARADIGMS.values())


def write(study: Study, name: str, right: int, seeds: int, items: str = "0123456789ab") -> None:
    """Runs and their answers: of the pairs of each paradigm `right` are right, and one more of some, by seed."""
    for seed in range(seeds):
        study.pretrain(name, seed)
        counts = dict(
            zip(PARADIGMS, np.random.default_rng(seed).integers(right, right + 2, len(PARADIGMS)), strict=True)
        )
        of_phenomenon = {
            phenomenon: fmean(
                count / PAIRS for each, count in counts.items() if PARADIGMS[each].phenomenon == phenomenon
            )
            for phenomenon in PHENOMENA
        }
        numbers = np.array([*counts.values()], dtype=float)
        ask(study, name, seed, BLIMP, answer(numbers, np.full(len(numbers), PAIRS), of_phenomenon), items)


def test_minimal_pairs_have_no_corpus_and_the_noise_of_paradigms(study: Study) -> None:
    write(study, "M0", 5, seeds=6)
    write(study, "M1", 7, seeds=6)
    findings = study.findings()
    delta = by_place(findings)["M1", "M0", MINIMAL_PAIRS]
    assert delta.found.mean == pytest.approx(20) and (delta.corpus, delta.is_own) == ("", True)
    assert {mine.units for pair in delta.units for mine in pair} == {len(PARADIGMS)}
    protocol = PROTOCOL.model_copy(update={"primary": (Measure(quantity=MINIMAL_PAIRS),)})
    found = find_deltas(study.group(), (), findings.stored, findings.evidence, findings.signals, protocol)
    (judged,) = (each for each in found if each.quantity == MINIMAL_PAIRS)
    assert judged.claimed[0] == "higher"
    (line,) = (row for row in facts_of(findings.delta_table) if row["quantity"] == MINIMAL_PAIRS)
    assert line["measured"] == MINIMAL_PAIRS, "they are not held out"
    assert f"{MINIMAL_PAIRS} are tested after it" in findings.delta_table.markdown
    forest = forest_of_readouts(findings.steps, findings.group)
    assert [panel.title for panel in forest.panels] == [MINIMAL_PAIRS]
    assert str(Measure(quantity=MINIMAL_PAIRS)) == MINIMAL_PAIRS


def test_a_declaration_without_their_margin_takes_the_usual_one(study: Study) -> None:
    write(study, "M0", 5, seeds=2)
    write(study, "M1", 7, seeds=2)
    findings, margins = study.findings(), {"bits per byte": 0.01}
    protocol = PROTOCOL.model_copy(update={"margins": margins})
    found = find_deltas(study.group(), (), findings.stored, findings.evidence, findings.signals, protocol)
    assert [each.found.margin for each in found if each.quantity == MINIMAL_PAIRS] == [PROTOCOL.margins[MINIMAL_PAIRS]]


def test_phenomena_stand_beside_people_and_gpt2(study: Study) -> None:
    """An arm that read other pairs has no column."""
    write(study, "M0", 5, seeds=2)
    write(study, "M1", 7, seeds=2)
    write(study, "M2", 9, seeds=1, items="b" * 12)
    table = study.findings().tables["minimal-pairs"]
    assert table.header == ("Phenomenon", "Paradigms", "People", "GPT-2", "M0", "M1")
    rows = {row["phenomenon"]: row for row in facts_of(table)}
    assert list(rows) == [*(name.replace("_", " ") for name in PHENOMENA), "all"]
    assert [float(rows["ellipsis"][name]) for name in ("paradigms", "people", "gpt2")] == [2, 85, 89.35]
    assert float(rows["all"]["people"]) == pytest.approx(88.55, abs=0.01)
    for name in ("M0", "M1"):
        answers = list(study.group().last_rows[name].answers.answer)
        assert float(rows["all"][name]) == pytest.approx(100 * fmean(each.value for each in answers), abs=1e-5)
        of_binding = fmean(each.groups["binding"] for each in answers)
        assert float(rows["binding"][name]) == pytest.approx(100 * of_binding, abs=1e-5)


def test_without_minimal_pairs_there_is_no_table_of_them(study: Study) -> None:
    study.pretrain("M0")
    assert "minimal-pairs" not in study.findings().tables

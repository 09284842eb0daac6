"""The answer: one word a step from its verdict, parts found by their recipes with their share, what it says of the
paper."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from ablations.declarations import PROTOCOL

from ablations import ladders
from reports.analysis.deltas import find_deltas
from reports.analysis.inference import compare
from reports.analysis.pairing import LADDER, OWN_RATES, Delta, is_of
from reports.analysis.parts import PARTS, find_parts, share_of
from reports.analysis.quantities import BITS
from reports.analysis.steps import Step, answer, find_steps, steps_table
from reports.analysis.verdicts import Look, Verdict
from tests.reports.made_up_study import Study, facts_of

pytestmark = pytest.mark.usefixtures("papers_ladder")

DECLARED = Path(__file__).resolve().parents[3] / "declarations" / "parts.py"
SEEDS = range(6)


def judged(direction: str = "", *, is_equivalent: bool = False, seeds: int = 6) -> Verdict:
    looks = (Look(6, 0.03, 1.0, direction, is_equivalent),) if seeds >= 6 else ()
    return Verdict(looks, True, 0, margin=0.016)


def step(verdict: Verdict, timing: str = "", no_verdict: str = "", **facts: object) -> Step:
    """M1 − M0, which the paper has better by 1.9 points, with a verdict in bits per byte."""
    values = dict.fromkeys(SEEDS, -0.1)
    delta = Delta("M1", "M0", BITS, "web", differences=values, design=LADDER, timing=timing, no_verdict=no_verdict)
    delta = replace(delta, comparison=compare(values.values(), 0.016), judged=verdict)
    made = Step("M1", "M0", LADDER, "", ("web", "web"), (delta,), delta, {}, published=1.9)
    return replace(made, **facts)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("made", "word", "said"),
    [
        (step(judged("lower"), "level"), "level", "supports the sign"),
        (step(judged("higher"), "level"), "level", "contradicts the sign"),
        (step(judged("higher"), "level", published=-0.5), "level", "supports the sign"),
        (
            step(judged("lower"), "waiting"),
            "waiting",
            "supports the sign, by the start of learning alone; cannot touch the level",
        ),
        (step(judged("lower")), "differs", "supports the sign"),
        (
            step(judged("lower"), shares_tokens=False),
            "differs",
            "supports the sign, with other tokens: no strict comparison",
        ),
        (
            step(judged(is_equivalent=True)),
            "equivalent within 0.016",
            "contradicts, in this measure: a change of 0.016 bits per byte or more is excluded",
        ),
        (step(judged("lower", is_equivalent=True), "level"), "level, equivalent within 0.016", "supports the sign"),
        (step(judged()), "within noise", "cannot touch: within noise, and no equivalence"),
        (step(judged(seeds=3)), "too few seeds", "cannot touch: too few seeds"),
        (step(Verdict()), "—", "cannot touch: exploratory"),
        (step(judged("lower"), "level", "not measurable: …"), "not measurable", "cannot touch: not measurable"),
        (
            step(judged("lower"), corpora=("wikibook", "web")),
            "differs",
            "cannot touch: the step changes the text that the measure is taken on",
        ),
        (step(judged("lower"), primary=None), "—", "cannot touch: the primary measure is not compared"),
        (step(judged("lower"), "level", published=None), "level", ""),
    ],
)
def test_word_and_what_it_says_of_the_paper_follow_from_the_verdict(made: Step, word: str, said: str) -> None:
    assert (made.word, made.on_the_paper) == (word, said)


def test_the_sentence_names_every_step_once_with_its_word() -> None:
    steps = [
        step(judged("lower"), "waiting"),
        step(judged("higher"), "level", variant="M4@rate1e-3", base="M2@rate1e-3", design=OWN_RATES),
        step(judged(), variant="M5", base="M4"),
        step(Verdict(), variant="M6", base="M5"),
        step(judged("lower"), "level", variant="M0+norm", part_of=("M1", "M0")),
    ]
    assert answer(steps) == (
        "Waiting: M1 − M0 (better); level: M4 − M2 at own rates (worse); within noise: M5 − M4; not tested: M6 − M5."
    )
    barred = [step(judged(), no_verdict="not measurable: it leaves late")]
    assert answer(barred) == "No step of the ladder is measurable: an arm of each fails a check of its regime."
    assert answer([]) == "No step of the ladder is compared in these records."


def test_a_share_is_a_ratio_of_paired_means_with_fiellers_interval() -> None:
    """It covers a true ratio as often as it says; a step that is not clear of 0 excludes no share."""
    draws, covered, known = np.random.default_rng(0), 0, 0
    for _ in range(600):
        whole = draws.normal(1.0, 0.25, 6)
        part = 0.6 + 0.5 * (whole - 1.0) + draws.normal(0, 0.1, 6)
        found = share_of(dict(enumerate(part)), dict(enumerate(whole)))
        if found is not None:
            assert found.value == pytest.approx(part.mean() / whole.mean())
            known, covered = known + 1, covered + (found.interval[0] <= 0.6 <= found.interval[1])
    assert known > 590 and 0.93 <= covered / known <= 0.97
    unclear: Mapping[int, float] = dict(enumerate((-1.0, 1.5, -0.5, 0.7)))
    assert share_of(unclear, unclear) is None
    exact = share_of({0: 2.0, 1: 2.1}, {0: 4.0, 1: 4.2})
    assert exact is not None and exact.interval == pytest.approx((0.5, 0.5)) and str(exact) == "50 % (50 to 50)"
    assert share_of({0: 1.0, 1: 5.0}, {0: 4.0, 2: 1.0}) is None, "one common seed"
    assert share_of({0: 1.0, 1: 2.0}, {0: 0.0, 1: 0.0}) is None


@pytest.fixture(scope="module")
def parts(tmp_path_factory: pytest.TempPathFactory) -> Study:
    """Six seeds of M0, M1, M2, and parts of M1; a shorter run, a rate and a cell that equals M1 are none."""
    study = Study(tmp_path_factory.mktemp("parts") / "runs", measured=("web", "wikibook"), common_context=64)
    noise = np.random.default_rng(1)
    levels = {
        **{"M0": 50.0, "M1": 60.0, "M2": 70.0, "M0+positions": 58.0, "F:positions": 58.0},
        **{"F:feedforward+norm": 51.0, "F:positions+feedforward+norm": 60.0},
        **{"M1@steps0.5": 55.0, "M1@rate3e-3": 60.0},
    }
    for name, level in levels.items():
        for seed in SEEDS:
            study.levels[name.partition("@")[0]] = level + noise.normal(0, 0.3)
            study.pretrain(name, seed)
    return study


def test_parts_are_what_lies_between_a_variant_and_its_parent(parts: Study) -> None:
    found = {pair: [row.name for row in rows] for pair, rows in find_parts(parts.group()).items()}
    assert found == {("M1", "M0"): ["M0+positions", "F:feedforward+norm"]}


def test_readings_are_steps_where_they_have_parts_of_their_own(tmp_path_factory: pytest.TempPathFactory) -> None:
    """At study scale M4's beta2 is M2's: that of the paper is a reading, of which M4 and one number are parts."""
    study = Study(tmp_path_factory.mktemp("readings") / "runs", scale="study", trained=True)
    for name in ("M1", "M2", "M4", "M4@beta2-0.95", "M2@beta2-0.95"):
        study.pretrain(name)
    found = {pair: {row.name for row in rows} for pair, rows in find_parts(study.group()).items()}
    assert found == {("M4@beta2-0.95", "M2"): {"M4", "M2@beta2-0.95"}}


@pytest.fixture
def declared() -> Iterator[None]:
    """The ladder of the declared study: its parts are arms beside the steps."""
    with ladders.using(ladders.load(str(DECLARED))):
        yield


def test_arms_of_the_declared_ladder_that_are_parts_stand_under_their_steps(declared: None, tmp_path: Path) -> None:
    """At every rate."""
    study = Study(tmp_path / "runs", scale="parts", trained=True, measured=("web", "wikibook"), common_context=32)
    at_rates = ("M0@rate6e-3", "M1@rate1e-3", "M0+rotary@rate3e-3")
    names = ("M0", "M1", "M0+rotary", "M1-rotary", "M2", "M4", "M2+decay", *at_rates)
    study.levels |= dict.fromkeys(names, 50.0)
    for name in names:
        study.pretrain(name)
    group = study.group()
    pairs = [("M1", "M0"), ("M0+rotary", "M0"), ("M1-rotary", "M0"), ("M2", "M1"), ("M4", "M2")]
    pairs += [("M2+decay", "M2")]
    found = step(judged()).deltas[0]
    deltas = [replace(found, variant=variant, base=base) for variant, base in pairs]
    deltas += [replace(found, variant=name, base=at_rates[0], design=OWN_RATES) for name in at_rates[1:]]
    steps = find_steps(group, deltas, (), PROTOCOL)
    assert [(each.name, each.part_of) for each in steps] == [
        ("M1 − M0", None),
        ("M0+rotary", ("M1", "M0")),
        ("M1-rotary", ("M1", "M0")),
        ("M2 − M1", None),
        ("M4 − M2", None),
        ("M2+decay", ("M4", "M2")),
        ("M1 − M0", None),
        ("M0+rotary", ("M1@rate1e-3", "M0@rate6e-3")),
    ]
    assert [each.has_own_rates for each in steps] == [False] * 6 + [True] * 2
    assert [each.published for each in steps[:5]] == pytest.approx([1.9, None, None, 2.9, -0.5])
    assert steps[-2].published == pytest.approx(1.9) and steps[-2].changes == "own rates: 1e-3, parent 6e-3"
    assert steps[-1].share is not None and steps[-1].share.value == 1


def test_the_table_has_steps_with_their_parts_and_no_empty_column(parts: Study) -> None:
    findings = parts.findings()
    deltas = find_deltas(
        findings.group, findings.bars.tasks, findings.stored, findings.evidence, findings.signals, PROTOCOL
    )
    steps = find_steps(findings.group, deltas, findings.waits, PROTOCOL)
    table = steps_table(steps, deltas, findings.group, PROTOCOL)
    assert [row[0] for row in table.rows] == ["M1 − M0", "· M0+positions", "· F:feedforward+norm", "M2 − M1"]
    assert {step.design for step in steps} == {LADDER, "add-one", PARTS}
    assert table.header == (
        *("Step", "Changes", "Answer", "Bits per byte", "Share of the step", "Trained on"),
        *("Bits per byte, other corpus", "Paper", "On the paper"),
    )
    shown = {row[0]: dict(zip(table.header, row, strict=True)) for row in table.rows}
    assert shown["M1 − M0"]["Answer"] == shown["· M0+positions"]["Answer"] == "differs"
    assert shown["· M0+positions"]["Changes"] == "positions"
    assert shown["· F:feedforward+norm"]["Changes"] == "feedforward, norm, norm epsilon"
    assert shown["M2 − M1"]["Trained on"] == "wikibook → web" and shown["M1 − M0"]["Trained on"] == "wikibook"
    assert shown["M1 − M0"]["Paper"] == "+1.9" and shown["· M0+positions"]["On the paper"] == "—"
    assert shown["M1 − M0"]["On the paper"] == "supports the sign"
    by_pair = {(delta.variant, delta.base, delta.measured): delta for delta in deltas}
    facts = {line["variant"]: line for line in facts_of(table)}
    place = "bits per byte on wikibook, 64 tokens"
    whole, part = (by_pair[name, "M0", place] for name in ("M1", "M0+positions"))
    expected = share_of(part.differences, whole.differences)
    assert expected is not None and expected.interval is not None
    assert float(facts["M0+positions"]["share"]) == pytest.approx(expected.value, abs=1e-6)
    assert expected.interval[0] < 0.8 < expected.interval[1] < 1, "58 − 50 of 60 − 50"
    assert facts["M0+positions"]["part_of"] == "M1 − M0" and facts["M1"]["share"] == ""
    assert any("Nothing is compared" in note and "M5 − M4" in note for note in table.notes)
    records = [own["Bits per byte"] for own in table.records if not isinstance(own, str | list | tuple)]
    assert all(len(ids) == 12 for ids in records) and table.latex


def deltas_of(study: Study) -> dict[str, Delta]:
    """The primary deltas by variant, whatever the regime."""
    findings = study.findings()
    found = find_deltas(
        findings.group, findings.bars.tasks, findings.stored, findings.evidence, findings.signals, PROTOCOL
    )
    return {each.variant: each for each in found if is_of(each, PROTOCOL.primary[0])}


@pytest.mark.parametrize(
    ("levels", "claimed"),
    [
        ({}, {"M0+positions"}),
        ({"M1": 50.0}, set()),
        ({"M1": 70.0}, {"M1", "M0+positions"}),
    ],
    ids=["without its step", "step not claimed", "step claimed"],
)
def test_a_part_is_tested_once_its_step_is_claimed(levels: dict[str, float], claimed: set[str], tmp_path: Path) -> None:
    study = Study(tmp_path / "runs", measured=("web", "wikibook"), common_context=64)
    noise = np.random.default_rng(2)
    for name, level in ({"M0": 50.0, "M0+positions": 60.0} | levels).items():
        for seed in SEEDS:
            study.levels[name] = level + noise.normal(0, 0.3)
            study.pretrain(name, seed)
    deltas = deltas_of(study)
    assert {name for name, delta in deltas.items() if delta.judged.claimed[0]} == claimed
    assert deltas["M0+positions"].judged.is_tested == ("M0+positions" in claimed)


def test_steps_without_a_verdict_say_why(parts: Study) -> None:
    """Half of the checks of a regime are of the plan, and smoke fails them."""
    findings = parts.findings()
    assert {step.word for step in findings.steps} == {"not measurable"}
    table = findings.tables["answer"]
    assert any(note.startswith("Not measurable: ") and "M1 − M0" in note for note in table.notes)
    assert any(reason for reasons in findings.regime.reasons.values() for reason in reasons.values())

"""The time of a plan on cores: against measured steps, against finished runs, and as time behaves."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ablations.ladders import variants
from ablations.launch import core_time
from ablations.launch.core_time import (
    BF16_TIMES,
    CoreTime,
    CorpusSize,
    Work,
    clock_seconds,
    core_flops_per_second,
    training_seconds,
)
from ablations.plan import unfinished
from ablations.scales import Scale, execution_at, scaled
from neobert.identity import plain
from neobert.kinds.glue import GlueStudy
from neobert.kinds.pretraining import PretrainingRun
from neobert.kinds.readouts import ReadoutEvaluation
from neobert.recipe import Pretraining
from neobert.runs.layout import Layout
from neobert.runs.records import cpu_model, sealed
from neobert.runs.run_file import write_run_file
from tests.ablations.plans import SOURCE, SYNTHETIC, rows_of
from tests.ablations.status_worlds import record_trial

MEASURED = [
    ("smoke", "M0", 263.0, 24.2),
    ("smoke", "M2", 294.0, 33.7),
    ("smoke", "M4", 294.0, 29.8),
    ("smoke", "M6", 512.0, 43.9),
    ("smoke", "M7", 294.0, 44.5),
    ("smoke", "M8", 294.0, 64.5),
    ("study", "M0", 528.5, 54.4),
    ("study", "M2", 675.9, 75.9),
    ("study", "M4", 675.9, 72.7),
    ("study", "M6", 1024.0, 113.8),
    ("study", "M7", 675.9, 126.7),
    ("study", "M8", 675.9, 154.6),
    ("study", "M2", 928.0, 93.9),
]
"""Scale, variant, real tokens of a step, and its milliseconds of processor time in fp32: means of sixty steps on an AMD
EPYC (Zen 3) with a matrix product of 90 GFLOP/s; the last on real text."""
MOST_OFF = 1.25


@pytest.fixture
def core(monkeypatch: pytest.MonkeyPatch) -> None:
    """The core on which `MEASURED` was measured."""
    monkeypatch.setattr(core_time, "core_flops_per_second", lambda: 90e9)


def recipe_of(scale: Scale, variant: str) -> Pretraining:
    return scaled(variants()[variant].recipe, scale, "trained").pretraining


@pytest.mark.usefixtures("core")
@pytest.mark.parametrize(("scale", "variant", "tokens", "milliseconds"), MEASURED)
def test_steps_take_as_long_as_measured(scale: Scale, variant: str, tokens: float, milliseconds: float) -> None:
    recipe = recipe_of(scale, variant)
    first = recipe.model_copy(update={"stages": recipe.stages[:1], "precision": "fp32"})
    steps = first.stages[-1].steps
    estimated = 1000 * training_seconds(first, tokens * steps) / steps
    assert 1 / MOST_OFF < estimated / milliseconds < MOST_OFF


def time_of(root: Path, *names: str, stages: Sequence[str] = ("pretraining",), heldout: str = "own") -> CoreTime:
    rows = rows_of(root, *names, scale="smoke", source=SYNTHETIC, stages=stages)
    execution = execution_at("smoke").model_copy(update={"heldout": heldout})
    return CoreTime.of(Layout(root), unfinished(rows), SYNTHETIC, execution, 2)


def publish(root: Path, run: PretrainingRun, times: float, **fields: object) -> None:
    """The record of a finished run on this processor that took `times` as long as estimated."""
    tokens = run.recipe.stages[-1].tokens / 2
    seconds = times * training_seconds(run.recipe, tokens)
    config = {"recipe": plain(run.recipe)}
    record = {"kind": "pretraining", "id": run.id, "config": config, "seconds": seconds, "real_tokens": tokens}
    folder = root / "pretraining" / run.id
    folder.mkdir(parents=True)
    content = {**record, "threads": 1, "gpu_hours": 0.0, "machine": {"cpu": cpu_model()}, **fields}
    (folder / "done.json").write_bytes(sealed(content))


@pytest.mark.usefixtures("core")
def test_finished_runs_correct_the_estimate(tmp_path: Path) -> None:
    stages = ("pretraining", "glue", "readouts")
    before = time_of(tmp_path, "M2", stages=stages)
    alone = before.core_hours(before.runs)
    assert alone is not None and "nothing else runs" in before.basis
    (run,) = PretrainingRun.among(time_of(tmp_path, "M4").runs)
    publish(tmp_path, run, times=3)
    after = time_of(tmp_path, "M2", stages=stages)
    assert after.core_hours(after.runs) == pytest.approx(3 * alone, rel=1e-9)
    assert "1 finished run here" in after.basis


@pytest.mark.usefixtures("core")
@pytest.mark.parametrize(
    "fields", [{"machine": {"cpu": "another"}}, {"threads": 4}, {"processes": 2}, {"gpu_hours": 1.0}]
)
def test_runs_on_other_hardware_correct_nothing(tmp_path: Path, fields: dict[str, object]) -> None:
    before = time_of(tmp_path, "M2").hours()
    (run,) = PretrainingRun.among(time_of(tmp_path, "M4").runs)
    publish(tmp_path, run, times=3, **fields)
    assert time_of(tmp_path, "M2").hours() == before


@pytest.mark.usefixtures("core")
def test_a_run_uses_one_core_and_two_use_two(tmp_path: Path) -> None:
    alone, both = time_of(tmp_path, "M2"), time_of(tmp_path, "M2", "M4")
    assert alone.hours() <= both.hours() < 1.1 * alone.hours()
    assert CoreTime.of(both.layout, both.runs, both.source, both.execution, 1).hours() > 1.8 * alone.hours()


@pytest.mark.usefixtures("core")
def test_every_estimated_kind_counts_and_others_are_named(tmp_path: Path) -> None:
    counted = time_of(tmp_path, "M2", stages=("pretraining", "glue", "readouts"))
    assert all(counted.core_hours([run]) for run in counted.runs) and not counted.uncounted
    assert counted.hours() > time_of(tmp_path, "M2").hours()
    assert time_of(tmp_path, "M2", stages=("pretraining", "contrastive")).uncounted == ("contrastive",)


@pytest.mark.usefixtures("core")
def test_what_is_left_after_pretraining_takes_as_long_as_before(tmp_path: Path) -> None:
    """A plan whose pre-training is done still has its fine-tuning to do, without the points that have a record."""
    layout, stages = Layout(tmp_path), ("pretraining", "glue", "readouts")
    before = time_of(tmp_path, "M2", stages=stages)
    (stage,) = PretrainingRun.among(before.runs)
    later = [run for run in before.runs if run is not stage]
    publish(tmp_path, stage, times=1)
    write_run_file(layout, stage, SOURCE, before.execution, {})
    after = time_of(tmp_path, "M2", stages=stages)
    assert after.runs == later
    assert after.core_hours(later) == pytest.approx(before.core_hours(later), rel=1e-9)
    cola = next(study for study in GlueStudy.among(later) if study.task == "cola")
    whole, points = after.core_hours([cola]), len(cola.points)
    assert whole
    for number in range(points):
        record_trial(layout, cola, number)
        assert after.core_hours([cola]) == pytest.approx(whole * (points - 1 - number) / points, rel=1e-9)


@pytest.mark.usefixtures("core")
def test_trials_that_two_grids_share_count_once(tmp_path: Path) -> None:
    plan = time_of(tmp_path, "M2", stages=("pretraining", "glue"))
    whole = next(study for study in GlueStudy.among(plan.runs) if study.task == "cola")
    part = whole.model_copy(update={"points": whole.points[:1]})
    both = replace(plan, runs=(*plan.runs, part))
    assert both.core_hours([whole, part]) == both.core_hours([part, whole]) == plan.core_hours([whole])
    assert replace(both, workers=1).hours() == pytest.approx(replace(plan, workers=1).hours(), rel=1e-9)


@pytest.mark.usefixtures("core")
def test_more_heldout_text_takes_longer(tmp_path: Path) -> None:
    assert time_of(tmp_path, "M2", heldout="all").hours() > time_of(tmp_path, "M2").hours()


@pytest.mark.usefixtures("core")
def test_more_pairs_of_blimp_take_longer(tmp_path: Path) -> None:
    time = time_of(tmp_path, "M2", stages=("pretraining", "readouts"))
    (stage,), (evaluation, *_) = PretrainingRun.among(time.runs), ReadoutEvaluation.among(time.runs)
    blimp = {"readouts": ("blimp",), "corpora": {"blimp": "its origin"}}
    plans = [[stage, evaluation.model_copy(update=blimp | {"pairs_per_paradigm": pairs})] for pairs in (40, 1000)]
    few, many = [replace(time, runs=runs).core_hours(runs[1:]) for runs in plans]
    assert few is not None and many is not None and 0 < few < many


def test_rows_are_as_full_as_documents_are_long() -> None:
    padded, packed = recipe_of("smoke", "M2"), recipe_of("smoke", "M6")
    context = padded.stages[-1].context
    sizes = [CorpusSize(tokens, 100) for tokens in (100 * (context / 2 - 2), 100 * context, 1e6)]
    assert [size.fill(padded) for size in sizes] == [0.5, 1.0, 1.0]
    assert [size.fill(packed) for size in sizes] == [1.0, 1.0, 1.0]


@pytest.mark.usefixtures("core")
def test_bf16_takes_longer() -> None:
    fp32 = recipe_of("study", "M2")
    bf16 = fp32.model_copy(update={"precision": "bf16"})
    assert fp32.precision == "fp32"
    times = training_seconds(bf16, 1e6) / training_seconds(fp32, 1e6)
    assert any(times == pytest.approx(known) for known in BF16_TIMES.values())


def test_a_core_computes() -> None:
    assert 1e9 < core_flops_per_second() < 1e13


SECONDS = st.integers(0, 100).map(float)


@st.composite
def works(draw: st.DrawFn) -> list[Work]:
    """Work of which each waits for some of what was drawn before, and for what is not planned."""
    found: list[Work] = []
    for number in range(draw(st.integers(1, 8))):
        after = draw(st.sets(st.sampled_from(["elsewhere", *(each.reference for each in found)])))
        found.append(Work(str(number), tuple(sorted(after)), tuple(draw(st.lists(SECONDS, max_size=4)))))
    return found


def longest_chain(work: Sequence[Work]) -> float:
    ends: dict[str, float] = {}
    for each in work:
        ends[each.reference] = max([ends.get(name, 0.0) for name in each.after], default=0.0) + max(
            each.parts, default=0
        )
    return max(ends.values())


@given(works(), st.integers(1, 5))
def test_workers_take_no_less_than_possible_and_no_more_than_one_alone(work: list[Work], workers: int) -> None:
    total = sum(sum(each.parts) for each in work)
    taken = clock_seconds(work, workers)
    assert max(total / workers, longest_chain(work)) <= taken + 1e-9 and taken <= total
    assert clock_seconds(work, 1) == total

"""Every run of a sweep is that of an ordinary variant: it has the id and the labels that the ladder gives it."""

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ablations.ladders import SCALES
from ablations.loading import papers
from ablations.scales import Scale
from neobert.kinds.rates import RateSearch, RateSweep
from neobert.search.space import Range
from tests.ablations.plans import SYNTHETIC, rows_of

RATES = st.integers(10, 99).flatmap(
    lambda digits: st.integers(-4, -2).map(lambda power: float(f"{digits}e{power - 1}"))
)
SPACE = {
    "peak_learning_rate": Range(low=1e-5, high=1, log=True),
    "weight_decay": Range(low=0, high=1, log=False),
    "beta2": Range(low=0.5, high=1, log=False),
}


@pytest.mark.parametrize("scale", SCALES)
@settings(max_examples=10)
@given(
    name=st.sampled_from([*papers().steps, "M4@steps0.25"]),
    rate=RATES,
    decay=st.sampled_from([None, 0.0123, 0.2]),
    beta2=st.sampled_from([None, 0.91]),
    seed=st.integers(1000, 1099),
)
def test_a_run_of_a_sweep_has_the_id_and_labels_of_the_variant_of_its_name(
    scale: Scale, name: str, rate: float, decay: float | None, beta2: float | None, seed: int
) -> None:
    (own,) = rows_of(Path("none"), name, seeds=[1000], scale=scale, stages=["pretraining"])
    sweep = RateSweep(stages=own.stages, seeds=(1000, seed), by=RateSearch(sampler="tpe", trials=3, space=SPACE))
    sweep = RateSweep.read(sweep.model_dump(mode="json"))  # as workers have it
    changed = {"peak_learning_rate": rate, "weight_decay": decay, "beta2": beta2}
    point = {key: own_value if changed[key] is None else changed[key] for key, own_value in sweep.own.items()}
    named = sweep.name_at(own.name, point)
    (row,) = rows_of(Path("none"), named, seeds=[seed], scale=scale, stages=["pretraining"])
    assert [run.id for run in sweep.runs(point, seed)] == [run.id for run in row.stages]
    labels = own.labels(own.planned[-1], SYNTHETIC) | {"base": own.name}
    assert sweep.labels_at(labels, point) == row.labels(row.planned[-1], SYNTHETIC)

"""The model of memory, which `--dry-run` prints, against the peak that a pretended GPU counts."""

import pytest

from ablations.loading import papers
from neobert.model.size import MicroBatchShape, training_memory
from tests.ablations.papers_ladder import PAPERS_LADDER
from tests.gpu_dry import passes
from tests.gpu_dry.conftest import Pretend


@pytest.mark.drill
@pytest.mark.parametrize("name", PAPERS_LADDER)
def test_the_model_of_memory_is_within_one_percent_of_each_stage_of_the_ladder(pretend: Pretend, name: str) -> None:
    """With full rows: no micro-batch of a run keeps more."""
    whole = papers().variants[name].recipe.pretraining
    for index, stage in enumerate(whole.stages):
        recipe = whole.model_copy(update={"stages": whole.stages[: index + 1]})
        table = (whole if whole.model.positions == "learned" else recipe).longest_context
        rows = passes.SLOTS // stage.context
        shape = MicroBatchShape.of(rows, stage.context, recipe.masking.highest_rate)
        memory = training_memory(recipe, table, shape, "single", 1, rows * stage.context)
        peak = pretend(passes.peak_of_full_rows, recipe, table, rows)
        assert memory.total - memory.reserve == pytest.approx(peak, rel=0.01)

"""A run of pre-training that stands at its start: initial weights of any shape, as the project exports them."""

from pathlib import Path

import torch

from ablations.ladder import variants
from ablations.plan import scaled_variant
from ablations.scales import execution_at
from neobert.data.preparation import open_specified
from neobert.grid.claims import acquire
from neobert.layout import Layout
from neobert.model.build import build_masked_language_model, initialize
from neobert.recipe import Model
from neobert.specifications import PretrainingRun, Source, write_run_file
from neobert.training import checkpoints

VARIANT = "M10"
ORIGIN = "benchmarks: initial weights"


def model_of(layers: int, width: int, heads: int, vocabulary_size: int) -> Model:
    """The study's last model in another size."""
    recipe, _ = scaled_variant(variants()[VARIANT], "smoke", "trained")
    size = {"layers": layers, "width": width, "heads": heads, "feedforward_width": 4 * width}
    return recipe.pretraining.model.model_copy(update=size | {"vocabulary_size": vocabulary_size})


def write_initial_run(root: Path, model: Model, context: int, source: Source) -> Path:
    """Write run.json and the checkpoint of step 0 below `root`; returns the folder of the run."""
    recipe, _ = scaled_variant(variants()[VARIANT], "smoke", "trained")
    stage = recipe.pretraining.stages[0].model_copy(update={"context": context, "tokens_per_step": context})
    run = PretrainingRun(
        recipe=recipe.pretraining.model_copy(update={"model": model, "stages": (stage,)}),
        previous=None,
        position_table=None,
        corpus_origin=ORIGIN,
        tokenizer_origin=open_specified(source).tokenizer_origin(
            recipe.pretraining.data.tokenizer, model.vocabulary_size
        ),
    )
    layout = Layout(root)
    folder = write_run_file(layout, run, source, execution_at("smoke"), {"variants": [VARIANT]})
    network = build_masked_language_model(model, context)
    initialize(network, model.initialization, 0)
    claim = acquire(layout.claims(run.id))
    assert claim is not None
    with claim:
        optimizer = {"step": torch.zeros(1)}
        checkpoints.save(folder / "checkpoints", 0, network.state_dict(), optimizer, {"step": 0}, claim)
    return folder

"""Folders of runs with checkpoints, for tests that export them."""

from pathlib import Path

import torch

from neobert.errors import EXIT_DONE
from neobert.export.__main__ import main
from neobert.kinds.pretraining import PretrainingRun
from neobert.model.build import build_masked_language_model, initialize
from neobert.runs.layout import Layout
from neobert.training import checkpoints
from tests.support.tiny_runs import claimed, tiny_model, tiny_run, write_tiny_run

M0_FORM = tiny_model(positions="learned", feedforward="gelu", norm="layer_norm")


def write_checkpoints(root: Path, run: PretrainingRun, *steps: int) -> Path:
    """A run.json and checkpoints of initial weights, as a run on its way leaves them; returns the run's folder."""
    folder = write_tiny_run(root, run)
    with claimed(Layout(root), run.id) as claim:
        for step in steps:
            network = build_masked_language_model(run.recipe.model, run.context)
            initialize(network, run.recipe.model.initialization, seed=step)
            weights = {name: tensor.clone() for name, tensor in network.state_dict().items()}
            checkpoints.save(
                folder / "checkpoints", step, weights, {"step": torch.zeros(1)}, {"step": step}, claim.check
            )
    return folder


def m0_folder(root: Path) -> Path:
    """An unfinished run in M0's form with its start."""
    return write_checkpoints(root, tiny_run(model=M0_FORM), 0)


def neobert_folder(root: Path) -> Path:
    """The same in NeoBERT's form."""
    return write_checkpoints(root, tiny_run(), 0)


def export_start(run: Path, out: Path, target: str) -> Path:
    """`python -m neobert.export` of a run's step 0; returns the folder."""
    assert main([str(run), "--to", target, "--out", str(out), "--step", "0"]) == EXIT_DONE
    return out

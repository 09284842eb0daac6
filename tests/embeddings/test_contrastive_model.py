"""`run.py model`: contrastive fine-tuning of external encoders by flag, and what the command refuses."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from ablations import scales
from ablations.run import main
from neobert.errors import EXIT_DONE
from neobert.executors.encoders import load_encoder
from neobert.files import read_lines
from neobert.runs.kinds import read_records
from neobert.runs.layout import Layout
from tests.support import external_models as world

CPU = torch.device("cpu")
STEPS = 40


@pytest.fixture
def short_course(monkeypatch: pytest.MonkeyPatch) -> None:
    """Few steps of smoke scale; workers read them from run.json like any others."""
    changes = {"steps": STEPS, "texts_per_step": 24, "warmup_steps": 4, "decay_steps": STEPS}
    rules = replace(scales.SMOKE, contrastive={**scales.SMOKE.contrastive, **changes})
    monkeypatch.setitem(scales.RULES, "smoke", rules)  # type: ignore[arg-type]


def asked(capsys: pytest.CaptureFixture[str], folder: Path, runs: Path, *flags: str) -> list[dict[str, Any]]:
    """What the command prints as JSON; it must end well."""
    capsys.readouterr()
    arguments = ["model", str(folder), "--pairs", "paraphrases", "--runs", str(runs)]
    code = main([*arguments, "--json", *flags])
    said = capsys.readouterr()
    assert code == EXIT_DONE, said.err
    entries: list[dict[str, Any]] = json.loads(said.out)
    return entries


@pytest.mark.usefixtures("short_course")
def test_a_roberta_is_trained_by_flag_and_its_move_repeats_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    runs, folder = tmp_path / "runs", world.save(world.seeded(world.roberta), tmp_path / "tiny-roberta")
    (planned,) = asked(capsys, folder, runs, "--dry-run")
    assert planned["state"] == "missing" and not runs.exists(), "looking wrote something"
    (done,) = asked(capsys, folder, runs)
    assert (done["run"], done["state"]) == (planned["run"], "done")
    assert done["heldout_accuracy"].keys() == {"paraphrases"} and np.isfinite(done["heldout_loss"]["paraphrases"])
    ((record,), problems) = read_records(runs)
    assert not problems and record["inputs"]["weights"] == done["weights"] and record["steps"] == STEPS
    assert record["labels"]["model"] == "tiny-roberta" and record["labels"]["origin"].keys() >= {"model.safetensors"}

    before = load_encoder(Layout(runs), done["weights"], CPU).encode(["the cat sleeps"])
    after = load_encoder(Layout(runs), done["run"], CPU).encode(["the cat sleeps"])
    assert np.abs(after - before).max() > 0.01, "nothing was learned"
    moved = folder.rename(tmp_path / "elsewhere")
    (again,) = asked(capsys, moved, runs)
    assert again["state"] == "done" and len(list(read_lines(runs / "starts.jsonl"))) == 1

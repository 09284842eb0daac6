"""The ladders of examples/ are short, proven, and trained at the scale that they declare."""

import html
import json
from itertools import product
from pathlib import Path

import pytest

from ablations import loading, run
from ablations.scaling import scaled_variant
from neobert.errors import EXIT_DONE, EXIT_MISSING
from reports import make_figures
from tests.support.tree_copy import REPOSITORY

NOT_HERE = ("demo", "real_glue")
"""The first is trained by tests/test_demo.py, and the second takes minutes and real text."""
EXAMPLES = sorted(path for path in (REPOSITORY / "examples").glob("*.py") if path.stem not in NOT_HERE)
MOST_LINES = 60
TRAINED = {
    "optimizer": ("muon",),
    "parts": ("qk", "relu2", "square"),
}


def test_every_example_is_trained_here() -> None:
    assert [path.stem for path in EXAMPLES] == sorted(TRAINED)


def test_the_scale_on_real_text_holds_every_variant() -> None:
    own = loading.load(REPOSITORY / "examples" / "real_glue.py")
    assert own.scale == "real"
    for variant, scale in product(own.variants.values(), own.scales):
        scaled_variant(own, variant, scale, "trained")


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_trains_at_its_own_scale(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert len(path.read_text().splitlines()) <= MOST_LINES
    own = loading.load(str(path))
    for variant in own.variants.values():
        assert variant.source and all(each.source for each in variant.modifications)
        for scale, vocabulary in (("tiny", "trained"), ("paper", "published")):
            scaled_variant(own, variant, scale, vocabulary)
    chosen = TRAINED[path.stem]
    flags = ["--variant", *chosen, "--scale", "tiny", "--stages", "pretrain", "--cluster", "here"]
    assert run.main(["--ladder", str(path), *flags, "--json"]) == EXIT_DONE, capsys.readouterr().err
    records = [json.loads(each.read_text()) for each in tmp_path.glob("runs/pretraining/*/done.json")]
    stages = [name for name in chosen for _ in own.variants[name].recipe.pretraining.stages]
    assert sorted(name for each in records for name in each["labels"]["variants"]) == sorted(stages)
    for each in records:
        assert each["labels"]["ladder"] == path.name and each["labels"]["scale"] == "tiny"
        assert 5 < each["scores"]["training_loss"] < 9, "a few steps from the logarithm of the vocabulary"
    reports = ["--runs", "runs", "--out", "out", "--compare", "--json"]
    capsys.readouterr()
    assert make_figures.main(["--ladder", str(path), *reports]) == EXIT_DONE
    (summary,) = json.loads(capsys.readouterr().out)
    assert summary["scale"] == "tiny" and set(chosen) <= summary["scores"].keys() == own.steps.keys()
    page = (tmp_path / "out/index.html").read_text()
    assert own.title in html.unescape(page) and "NeoBERT" not in page
    assert make_figures.main(reports) == EXIT_MISSING
    said = f"{len(records)} record(s) planned on the ladder {path.name}: pass --ladder and that file to include them"
    assert said in capsys.readouterr().err

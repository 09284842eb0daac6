"""A corpus is added by one line of a ladder: from compressed JSON lines, through the real commands."""

import gzip
import json
from pathlib import Path

import pytest

from ablations import prefetch, run
from ablations.ladder import M1
from ablations.recipe_runs import pretraining_runs
from neobert.data.sources import SyntheticSource, open_source
from neobert.errors import EXIT_DONE, EXIT_MISSING
from tests.support.small_corpora import texts
from tests.support.tree_copy import REPOSITORY

LADDER = """
from dataclasses import replace
from ablations.ladder import M0, M1
from ablations.scales import SMOKE
from ablations.variant import Modification

CORPORA = {"recipes": ("cooking", "body")}
DATA = Modification("Recipes", source="a test", data={"corpus": "recipes"})
COOK = M1.derive("cook", DATA)
SHAPES = {(12, 768): (2, 16)}
TINY = replace(SMOKE, shapes={"trained": SHAPES, "published": SHAPES}, heads=2, documents=200, contexts={512: 64})
SCALES = {"tiny": replace(TINY, tokens_per_step={131_072: 1024}, steps={1_000_000: 4})}
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    lines = "".join(json.dumps({"body": text}) + "\n" for text in texts(400))
    part = tmp_path / "cooking" / "2026" / "part.jsonl.gz"
    part.parent.mkdir(parents=True)
    part.write_bytes(gzip.compress(lines.encode()))
    (tmp_path / "mine.py").write_text(LADDER)
    return tmp_path


def test_a_corpus_of_compressed_json_lines_is_declared_and_trained_on(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = ["--ladder", str(folder / "mine.py"), "--variant", "cook"]
    runs = ["--runs", str(folder / "runs"), "--stages", "pretrain", "--cluster", "here", "--workers", "1"]
    assert run.main([*flags, *runs]) == EXIT_DONE, capsys.readouterr().err
    (corpus,) = (json.loads(path.read_text()) for path in folder.glob("runs/data/*/manifest.json"))
    assert corpus["documents"] == 400 and corpus["origins"]["corpus"].endswith(":column=body")
    (record,) = (json.loads(path.read_text()) for path in folder.glob("runs/pretraining/*/done.json"))
    assert record["scores"]["heldout_loss"].keys() == {"recipes"} and "read_by_corpus" not in record
    capsys.readouterr()
    assert (
        prefetch.main([*flags, "--data-dir", str(folder / "none"), "--stages", "pretrain", "--check", "--json"])
        == EXIT_MISSING
    )
    assert "recipes" not in capsys.readouterr().out, "the hub has it not"
    (folder / "cooking").rename(folder / "cookery")
    assert run.main([*flags, *runs, "--dry-run"]) == EXIT_MISSING
    assert f"there is no corpus recipes in {folder / 'cooking'}: put files" in capsys.readouterr().err


@pytest.mark.parametrize("data", ["synthetic", "folder"])
def test_its_place_is_in_no_id_and_trained_tokenizers_read_it(
    folder: Path, tmp_path: Path, data: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the corpora that a ladder declares all count, also those that the run does not read."""
    monkeypatch.setattr(SyntheticSource, "tokenizer_documents", 100)
    name = data if data == "synthetic" else str(REPOSITORY / "examples" / "slice")

    def planned(corpora: dict[str, tuple[str, str]]) -> tuple[str, list[str]]:
        source = open_source(name, synthetic_documents=100, corpora=corpora)
        (made,) = pretraining_runs(M1.recipe.pretraining, 0, source)
        return made.id, sorted(source.tokenizer("wordpiece", 600, tmp_path / "cache").tokenizer.get_vocab())

    here = planned({"recipes": (str(folder / "cooking"), "body")})
    (folder / "cooking").rename(folder / "elsewhere")
    assert planned({"recipes": (str(folder / "elsewhere"), "body")}) == here
    assert all(ours != theirs for ours, theirs in zip(here, planned({}), strict=True))

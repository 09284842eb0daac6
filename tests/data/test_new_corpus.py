"""A corpus is added by one line of a ladder: from compressed JSON lines to a record."""

import gzip
import json
from pathlib import Path

import pytest

from ablations import prefetch, run
from ablations.ladder import M1
from ablations.recipe_runs import pretraining_runs
from neobert.data.sources import SyntheticSource, open_source
from neobert.errors import EXIT_MISSING
from neobert.execution import Execution
from neobert.executors.preparation import open_specified
from neobert.runs.layout import Layout
from neobert.runs.run_file import SourceSpecification, write_run_file
from tests.support.small_corpora import texts
from tests.support.tiny_runs import tiny_recipe, tiny_stage, work
from tests.support.tree_copy import REPOSITORY

LADDER = """
from ablations.ladder import M0, M1
from ablations.variant import Modification

CORPORA = {"recipes": ("cooking", "body")}
COOK = M1.derive("cook", Modification("Recipes", source="a test", data={"corpus": "recipes"}))
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
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(SyntheticSource, "tokenizer_documents", 100)
    source = SourceSpecification(
        name="synthetic", synthetic_documents=100, corpora={"recipes": (str(folder / "cooking"), "body")}
    )
    stage, data = tiny_stage(steps=4, decay_steps=0), tiny_recipe().data.model_copy(update={"corpus": "recipes"})
    (made,) = pretraining_runs(tiny_recipe(data=data, stages=(stage,)), 0, open_specified(source))
    execution = Execution(threads=1, processes=1, micro_batch_tokens=256, checkpoint_interval_steps=4)
    write_run_file(Layout(folder / "runs"), made, source, execution, {})
    assert work(folder / "runs", made.reference) == 0
    (corpus,) = (json.loads(path.read_text()) for path in folder.glob("runs/data/*/manifest.json"))
    assert corpus["documents"] == 400 and corpus["origins"]["corpus"].endswith(":column=body")
    (record,) = (json.loads(path.read_text()) for path in folder.glob("runs/pretraining/*/done.json"))
    assert record["scores"]["heldout_loss"].keys() == {"recipes"} and "read_by_corpus" not in record
    flags = ["--ladder", str(folder / "mine.py"), "--variant", "cook"]
    check = ["--data-dir", str(folder / "none"), "--stages", "pretrain", "--check", "--json"]
    assert prefetch.main([*flags, *check]) == EXIT_MISSING
    assert "recipes" not in capsys.readouterr().out, "the hub has it not"
    (folder / "cooking").rename(folder / "cookery")
    assert run.main([*flags, "--runs", str(folder / "runs"), "--stages", "pretrain", "--dry-run"]) == EXIT_MISSING
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

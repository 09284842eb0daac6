"""Data that cannot be read or scored are refused in one sentence when they are planned, before anything is written."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from ablations import run
from neobert.data.tokenizers import train_wordpiece
from neobert.errors import EXIT_DONE, EXIT_REFUSED
from tests.support.made_up_topics import TOPICS_LADDER
from tests.support.small_corpora import texts, with_ids, write_table

Columns = dict[str, Sequence[Any]]
FLAGS = ["--variant", "M0@steps0.002", "--scale", "smoke", "--cluster", "here"]


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A folder with one corpus and CoLA."""
    folder = tmp_path / "data"
    write_table(folder / "corpora/wikibook/a.parquet", {"text": texts(100)})
    for split in ("train", "validation"):
        write_table(folder / f"glue/cola/{split}.parquet", {"sentence": texts(8), "label": [0, 1] * 4})
    return folder


def refused(arguments: Sequence[str], runs: Path, capsys: pytest.CaptureFixture[str]) -> str:
    """What a command says when it refuses its data, which a dry run says too; nothing is written."""
    capsys.readouterr()
    said = set()
    for mode in ([], ["--dry-run"]):
        assert run.main([*arguments, "--runs", str(runs), *mode]) == EXIT_REFUSED
        said.add(" ".join(capsys.readouterr().err.split()).partition("run.py: ")[2])
    assert not list(runs.glob("*/*"))
    (sentence,) = said
    return sentence


def test_an_id_beyond_the_rows_of_the_embedding_is_refused_however_few_tokens_there_are(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    content = json.loads(with_ids(train_wordpiece(texts(100), 330), lambda number: number).content)
    vocabulary = content["model"]["vocab"]
    vocabulary[max(vocabulary, key=vocabulary.get)] = 40_000
    path = data / "tokenizers/bert-base-uncased/tokenizer.json"
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps(content))
    said = refused([*FLAGS, "--data", str(data), "--stages", "pretrain"], tmp_path / "runs", capsys)
    assert "tokenizer.json has ids up to 40000 but the recipe's model.vocabulary_size is 30522" in said


@pytest.mark.parametrize(
    ("split", "changes", "message"),
    [
        ("train", {"label": ["yes", "no"] * 4}, "CoLA train, row 0: label 'yes' is not one of 0, 1"),
        ("validation", {"label": [1] * 8}, "CoLA validation: 'label' is 1 in every row"),
        ("train", {"sentence": [" "] * 8}, "CoLA train: 'sentence' is empty in every row"),
        ("train", {"sentence": [*texts(7), None]}, "CoLA train, row 7: 'sentence' is None, not a text"),
    ],
)
def test_what_cannot_be_learned_or_scored_is_refused_before_pretraining(
    data: Path, tmp_path: Path, split: str, changes: Columns, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    write_table(data / f"glue/cola/{split}.parquet", {"sentence": texts(8), "label": [0, 1] * 4, **changes})
    said = refused([*FLAGS, "--data", str(data), "--stages", "pretrain", "glue"], tmp_path / "runs", capsys)
    assert message in said
    arguments = [*FLAGS, "--data", str(data), "--stages", "pretrain", "--dry-run", "--runs", str(tmp_path / "runs")]
    assert run.main(arguments) == EXIT_DONE, "which needs no task"


TONE = """
TASKS = [Task(name="tone", kind="classification", folder="tone", columns=("text",), label_column="verdict",
              classes=("true", "false"), metrics=("accuracy",))]
"""


def test_labels_of_an_own_task_are_checked_before_pretraining(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "own.py").write_text(TOPICS_LADDER + TONE)
    for split in ("train", "validation"):
        write_table(tmp_path / f"tone/{split}.parquet", {"text": texts(8), "verdict": ["yes", "no"] * 4})
    arguments = ["--ladder", str(tmp_path / "own.py"), "--variant", "M0", "--cluster", "here"]
    said = refused(arguments, tmp_path / "runs", capsys)
    assert "tone train, row 0, verdict: label 'yes' is none of the classes of tone" in said

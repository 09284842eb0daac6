"""Data that changed between plan and work are refused by name, whatever reads them; nothing is published of them."""

import json
from collections.abc import Iterator
from pathlib import Path

import pyarrow.parquet as pq
import pytest
import torch

from neobert.data.sources import DirectorySource
from neobert.data.tokenizers import train_wordpiece
from neobert.errors import EXIT_MISSING, ChangedData
from neobert.executors.corpus import text_tokenizer, tokenized_corpus
from neobert.executors.encoders import load_encoder
from neobert.kinds.pretraining import PretrainingRun
from neobert.processes import StopRequest
from neobert.runs import worker
from neobert.runs.layout import Layout
from neobert.runs.run_file import SourceSpecification, write_run_file
from tests.ablations.status_worlds import EXECUTION, study_of
from tests.embeddings.tiny_contrastive import pair_set, tiny_contrastive, write_encoder
from tests.glue.glue_worlds import protocol
from tests.support.small_corpora import texts, write_table
from tests.support.tiny_runs import LABELS, tiny_run


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A folder with a corpus, a tokenizer, a task and a data set of pairs."""
    folder = tmp_path / "mydata"
    write_table(folder / "corpora" / "web" / "a.parquet", {"text": texts(400)})
    write_table(folder / "corpora" / "web" / "b.parquet", {"text": texts(400, seed=1)})
    for split in ("train", "validation"):
        write_table(folder / "glue" / "cola" / f"{split}.parquet", {"sentence": texts(20), "label": [0, 1] * 10})
    write_table(folder / "pairs" / "mine.parquet", {"query": texts(9), "document": texts(9, seed=1)})
    train_wordpiece(texts(50), 300).save(folder / "tokenizers" / "bert-base-uncased")
    return folder


def specification(data: Path) -> SourceSpecification:
    return SourceSpecification(name=str(data), synthetic_documents=1)


def planned(data: Path) -> PretrainingRun:
    source = DirectorySource(data)
    origins = {
        "corpus_origin": source.corpus_origin("web"),
        "tokenizer_origin": source.tokenizer_origin("wordpiece", 512),
    }
    return tiny_run().model_copy(update=origins)


def change(path: Path) -> None:
    """One byte of the content, at the same size."""
    table = pq.read_table(path).to_pydict()
    column = next(iter(table))
    write_table(path, {**table, column: [table[column][0] + "x", *table[column][1:]]})


def nothing_published(runs: Path) -> bool:
    folders = ("data", "glue", "contrastive", "pretraining")
    names = {path.name for folder in folders for path in (runs / folder).rglob("*") if path.is_file()}
    return names <= {"run.json", "error.json"} | {name for name in names if "released" in name}


def failure(layout: Layout, reference: str, error: str) -> str:
    """What the real worker notes below the folder of runs: its part fails with the exit code of missing data."""
    assert worker.run(["--runs", str(layout.root), reference], StopRequest()).code == 1
    (path,) = layout.root.glob(error)
    noted = json.loads(path.read_text())
    assert noted["exit_code"] == EXIT_MISSING
    return str(noted["error"])


def test_data_that_moved_are_read_where_the_same_command_finds_them(tmp_path: Path, data: Path) -> None:
    """Ids have the bytes of the data and not their folder, so that the run is the same one."""
    layout, run = Layout(tmp_path / "runs"), planned(data)
    corpus = run.preparation[0].reference
    write_run_file(layout, run, specification(data), EXECUTION, LABELS)
    moved = data.rename(tmp_path / "mydata of the archive")
    assert worker.run(["--runs", str(layout.root), corpus], StopRequest()).code == 1
    assert planned(moved) == run
    write_run_file(layout, planned(moved), specification(moved), EXECUTION, LABELS)
    assert worker.run(["--runs", str(layout.root), corpus], StopRequest()).code == 0


def test_a_corpus_is_not_tokenised_under_the_name_of_another(tmp_path: Path, data: Path) -> None:
    layout, run = Layout(tmp_path / "runs"), planned(data)
    write_run_file(layout, run, specification(data), EXECUTION, LABELS)
    change(data / "corpora" / "web" / "b.parquet")
    said = failure(layout, run.reference, f"{run.folder}/error.json")
    assert f"corpus web of {data} changed since this was planned" in said
    assert nothing_published(layout.root)


def test_a_corpus_that_changes_while_it_is_read_is_not_kept(
    tmp_path: Path, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs, run, documents = tmp_path / "runs", planned(data), DirectorySource.documents

    def changing(source: DirectorySource, corpus: str) -> Iterator[str]:
        yield from documents(source, corpus)
        change(data / "corpora" / "web" / "a.parquet")

    monkeypatch.setattr(DirectorySource, "documents", changing)
    with pytest.raises(ChangedData, match="corpus web"):
        tokenized_corpus(Layout(runs), run, run.corpus, specification(data))
    folder = Layout(runs).data(run.data_id)
    assert not folder.exists() and not list(folder.parent.glob(f"{folder.name}*"))


def test_a_tokenizer_is_not_taken_for_another(tmp_path: Path, data: Path) -> None:
    layout, run = Layout(tmp_path / "runs"), planned(data)
    opened = text_tokenizer(layout, run, DirectorySource(data))
    assert opened.vocabulary_size <= 300
    encoder = write_encoder(layout.root, tokenizer_origin=run.tokenizer_origin)
    with pytest.raises(ChangedData, match="the wordpiece tokenizer changed since this was planned"):
        load_encoder(layout, encoder.id, torch.device("cpu"))
    train_wordpiece(texts(50, seed=3), 300).save(data / "tokenizers" / "bert-base-uncased")
    with pytest.raises(ChangedData, match="the wordpiece tokenizer"):
        text_tokenizer(layout, run, DirectorySource(data))
    with pytest.raises(ChangedData, match="the wordpiece tokenizer"):
        tokenized_corpus(layout, run, run.corpus, specification(data))
    assert not layout.data(run.data_id).exists()


def test_a_task_is_not_encoded_under_the_name_of_another(tmp_path: Path, data: Path) -> None:
    source, layout = DirectorySource(data), Layout(tmp_path / "runs")
    encoder = write_encoder(layout.root, tokenizer_origin=source.tokenizer_origin("wordpiece", 512))
    origins = {"task_origin": source.task_origin("cola"), "tokenizer_origin": encoder.tokenizer_origin}
    shape = {"context": 32, "protocol": protocol(max_tokens=32)}
    study = study_of(tiny_run(), points=1).model_copy(update={"weights": encoder.id, **shape, **origins})
    folder = write_run_file(layout, study, specification(data), EXECUTION, LABELS)
    change(data / "glue" / "cola" / "validation.parquet")
    assert f"GLUE task cola of {data} changed" in failure(layout, study.reference, "glue/cola/errors/*.json")
    assert not (layout.root / "data" / "glue").exists() and [path.name for path in folder.iterdir()] == ["run.json"]


def test_pairs_are_not_encoded_under_the_name_of_others(tmp_path: Path, data: Path) -> None:
    source, layout = DirectorySource(data), Layout(tmp_path / "runs")
    encoder = write_encoder(layout.root, tokenizer_origin=source.tokenizer_origin("wordpiece", 512))
    sets = (pair_set("paraphrases").model_copy(update={"name": "mine", "origin": source.pair_origin("mine")}),)
    run = tiny_contrastive(encoder.id).model_copy(update={"sets": sets})
    write_run_file(layout, run, specification(data), EXECUTION, LABELS)
    change(data / "pairs" / "mine.parquet")
    assert "data set mine of mydata changed" in failure(layout, run.reference, f"{run.folder}/error.json")
    assert not (layout.root / "data" / "pairs").exists()

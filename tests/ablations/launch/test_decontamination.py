"""Pairs that share a text with what encoders are measured on are left out, counted, and part of a run's name."""

import json
import shutil
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ablations.run import main
from neobert.data.pairs import normalize_text
from neobert.data.sources import open_source
from neobert.embeddings.pairs import encode_pairs
from neobert.errors import EXIT_DONE, EXIT_REFUSED, MissingData
from tests.embeddings.test_contrastive import Letters
from tests.support import external_models as world
from tests.support.small_corpora import write_table

MEASURED = {
    "sentence1": ["The cat sleeps.", None, "..."],
    "candidates": [[{"text": "A dog"}, {"text": "a stone"}], [], []],
}


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A folder with pairs and two tasks."""
    folder = tmp_path / "data"
    for name, columns in (("STS/one", MEASURED), ("STS/two", {"text": ["Birds fly"]})):
        write_table(folder / "mteb" / name / "test.parquet", columns)
    rows = {
        "query": ["the CAT  sleeps", "a hound", "x", "birds-fly", "a cat", "..."],
        "document": ["y", "A dog!", "y", "z", "sleeps", "!"],
        "negative": ["", "", "A  stone", "", "the dog", ""],
    }
    write_table(folder / "pairs" / "mine.parquet", rows)
    return folder


def kept(data: Path, *places: str) -> tuple[list[str], int]:
    """The queries that are trained on, and how many pairs were left out for what they share."""
    unseen = [str(data / place) for place in places]
    source = open_source(str(data), synthetic_documents=1, unseen=unseen)
    pairs = list(source.pairs("mine"))
    encoded = encode_pairs(pairs, Letters(), 64, leaves_out=source.leaves_out)
    queries = [pair.query for pair in pairs if not source.leaves_out(pair)]
    assert (encoded.counts.read, encoded.counts.kept) == (len(pairs), len(queries)) == (6, len(encoded))
    return queries, encoded.counts.shared


def test_a_pair_goes_when_any_of_its_texts_is_measured(data: Path) -> None:
    assert kept(data) == (["the CAT  sleeps", "a hound", "x", "birds-fly", "a cat", "..."], 0)
    assert kept(data, "mteb/STS/two") == (["the CAT  sleeps", "a hound", "x", "a cat", "..."], 1)
    assert kept(data, "mteb") == (["a cat", "..."], 4)
    assert kept(data, "mteb/STS/one/test.parquet", "mteb/STS/two") == (["a cat", "..."], 4)


@given(st.lists(st.text("abcÄß", min_size=1, max_size=5), min_size=1, max_size=6), st.sampled_from([" ", " , ", "-\n"]))
def test_case_punctuation_and_spaces_make_no_other_text(words: list[str], between: str) -> None:
    text = between.join(words)
    assert normalize_text(text) == normalize_text(f"  {text.upper()}! ") == normalize_text(normalize_text(text))
    assert normalize_text(text) != normalize_text(f"{text} more") and normalize_text(between) == ""


def test_the_name_follows_the_bytes_of_what_is_unseen_and_not_their_place(data: Path) -> None:
    def origin(*places: Path) -> str:
        source = open_source(str(data), synthetic_documents=1, unseen=list(map(str, places)))
        return source.pair_origin("mine")

    moved = data.parent / "moved"
    shutil.copytree(data / "mteb", moved)
    assert origin(data / "mteb") == origin(moved) == origin(moved / "STS/two", moved / "STS/one")
    assert len({origin(), origin(moved), origin(moved / "STS" / "one")}) == 3
    assert origin().startswith("directory:")


def test_a_place_without_texts_is_named(data: Path) -> None:
    for place in ("nowhere", "pairs.parquet", "empty", "notes.md"):
        (data / "empty").mkdir(exist_ok=True)
        (data / "notes.md").touch()
        with pytest.raises(MissingData, match=f"{place} holds no tables"):
            open_source(str(data), synthetic_documents=1, unseen=[str(data / place)])


def test_the_command_takes_the_flag_and_refuses_it_for_other_sources(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = world.save(world.seeded(world.bert), tmp_path / "model")
    flags = ["--model", str(model), "--stages", "contrastive", "--runs", str(tmp_path / "runs"), "--dry-run", "--json"]
    assert main([*flags, "--without-texts-of", str(data)]) == EXIT_REFUSED
    assert "looks through the pairs of a folder: leave it out with synthetic" in capsys.readouterr().err
    ids = set()
    for unseen in ([], ["--without-texts-of", str(data / "mteb")]):
        assert main([*flags, "--data", str(data), *unseen]) == EXIT_DONE
        (entry,) = json.loads(capsys.readouterr().out)
        ids.add(entry["run"])
    assert len(ids) == 2

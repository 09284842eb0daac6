"""The real text of the study: what is written from recorded sources, and refused from others."""

import csv
import json
from pathlib import Path

import pandas as pd
import pytest

from ablations import real_text
from ablations.real_text import TextSource, assemble, read_sources
from neobert.data.sources import open_source
from neobert.errors import EXIT_MISSING, EXIT_REFUSED, MissingData
from neobert.files import sha256_of
from tests.support.small_corpora import REAL_DATA

PIECES = [("a-0", "one\ntwo", "a"), ("b-0", "five", "b"), ("a-1", "three é", "a")]


@pytest.fixture
def sources(tmp_path: Path) -> list[TextSource]:
    """Two files as they would be downloaded, with their declarations."""
    folder = tmp_path / "sources"
    folder.mkdir()
    pd.DataFrame(PIECES, columns=["id", "text", "source"]).to_parquet(folder / "books.parquet")
    pd.DataFrame({"id": ["w", "w"], "text": ["alpha", "beta"]}).to_parquet(folder / "web.parquet")
    pd.DataFrame({"sentence": ["good"], "label": [1]}).to_parquet(folder / "train.parquet")
    into = {"books": "corpora/wikibook", "web": "corpora/web", "train": "glue/sst2"}
    return [
        TextSource(f"{name}.parquet", sha256_of(folder / f"{name}.parquet"), where, join, "somewhere", "some")
        for (name, where), join in zip(into.items(), ("source", "", ""), strict=True)
    ]


def test_pieces_of_a_document_are_joined_and_texts_are_what_data_reads(
    sources: list[TextSource], tmp_path: Path
) -> None:
    assemble(sources, tmp_path / "sources", tmp_path / "out")
    books = pd.read_json(tmp_path / "out" / "corpora" / "wikibook" / "books.jsonl", lines=True)
    assert dict(zip(books.id, books.text, strict=True)) == {"a": "one\ntwo\nthree é", "b": "five"}
    source = open_source(str(tmp_path / "out"), synthetic_documents=1)
    assert list(source.documents("web")) == ["alpha", "beta"] and len(list(source.documents("wikibook"))) == 2
    assert (tmp_path / "out" / "glue" / "sst2" / "train.parquet").is_file()


def test_what_is_not_as_recorded_is_refused_and_nothing_written(
    sources: list[TextSource], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    table = tmp_path / "sources.csv"
    with table.open("w", newline="") as file:
        rows = csv.DictWriter(file, list(vars(sources[0])))
        rows.writeheader()
        rows.writerows(map(vars, sources))
    monkeypatch.setattr(real_text, "read_sources", lambda: read_sources(table))
    changed, out = tmp_path / "sources" / "web.parquet", tmp_path / "out"
    flags = ["--sources", str(changed.parent), "--out", str(out)]
    content = changed.read_bytes()
    changed.write_bytes(content + b"x")
    assert real_text.main(flags) == EXIT_REFUSED and "another content than recorded" in capsys.readouterr().err
    changed.unlink()
    assert real_text.main(flags) == EXIT_MISSING and "web.parquet is not there" in capsys.readouterr().err
    assert real_text.main([]) == EXIT_REFUSED and not out.exists()
    changed.write_bytes(content)
    monkeypatch.setattr(real_text, "_write_texts", lambda *_: json.loads("torn"))
    assert real_text.main(flags) == EXIT_REFUSED and not list(tmp_path.glob("out*"))
    monkeypatch.undo()
    monkeypatch.setattr(real_text, "read_sources", lambda: read_sources(table))
    assert real_text.main(flags) == 0 and out.is_dir()
    assert real_text.main(flags) == EXIT_REFUSED and "exists" in capsys.readouterr().err
    assert real_text.main(["--list"]) == 0 and sources[0].sha256 in capsys.readouterr().out


def test_every_declared_source_has_a_checksum_an_origin_and_a_licence(tmp_path: Path) -> None:
    declared = read_sources()
    assert {source.into.split("/")[0] for source in declared} == {"corpora", "glue"}
    assert all(len(source.sha256) == 64 and source.origin and source.licence for source in declared)
    with pytest.raises(MissingData, match="books"):
        assemble(declared, tmp_path, tmp_path / "out")


@pytest.mark.skipif(not REAL_DATA.is_dir(), reason="the sources lie beside the repository only where they were fetched")
def test_the_recorded_sources_give_whole_novels(tmp_path: Path) -> None:
    assemble([source for source in read_sources() if source.join], REAL_DATA, tmp_path / "out")
    books = pd.read_json(tmp_path / "out" / "corpora" / "wikibook" / "books.jsonl", lines=True)
    assert len(books) == 100 and books.text.str.len().min() > 50_000

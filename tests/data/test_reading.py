"""Claims of reading: any format gives the same texts in the same order, and a bad file is one clear sentence."""

import csv
import gzip
import hashlib
import io
import json
import re
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from neobert.data.catalog import CHARACTERS_PER_TOKEN
from neobert.data.reading import as_number, data_files, read_rows, read_table, read_texts
from neobert.data.shards import prepare
from neobert.data.sources import DirectorySource
from neobert.data.task_files import SplitFiles
from neobert.data.tokenizers import train_wordpiece
from neobert.errors import DamagedFile, MissingData
from tests.support.hidden import hidden
from tests.support.small_corpora import texts

TEXTS = ["first", 'two\nlines, a "quote" and a \t tab', "", "NA", "7", "ünï"]
LINES = ["one document a line", "", "ünï"]
BOM = b"\xef\xbb\xbf"


def separated(separator: str) -> bytes:
    text = io.StringIO()
    rows = csv.writer(text, delimiter=separator)
    rows.writerows([("id", "text"), *enumerate(TEXTS)])
    return text.getvalue().encode()


def parquet() -> bytes:
    sink = io.BytesIO()
    pq.write_table(pa.table({"id": range(len(TEXTS)), "text": TEXTS}), sink, row_group_size=4)
    return sink.getvalue()


CONTENTS: dict[str, bytes] = {
    ".parquet": parquet(),
    ".jsonl": "".join(json.dumps({"id": number, "text": text}) + "\n" for number, text in enumerate(TEXTS)).encode(),
    ".csv": separated(","),
    ".tsv": separated("\t"),
    ".txt": "\n".join([*LINES, ""]).encode(),
}


@pytest.mark.parametrize("suffix", CONTENTS)
def test_every_format_gives_the_same_texts(tmp_path: Path, suffix: str) -> None:
    """Text also compressed, and behind a byte order mark."""
    expected = LINES if suffix == ".txt" else TEXTS
    path = tmp_path / f"a [b] *{suffix}"
    for content in (CONTENTS[suffix], *([BOM + CONTENTS[suffix]] if suffix != ".parquet" else [])):
        path.write_bytes(content)
        assert list(read_texts(path, "text")) == expected
    if suffix != ".parquet":
        path.with_name(f"{path.name}.gz").write_bytes(gzip.compress(content))
        assert list(read_texts(path.with_name(f"{path.name}.gz"), "text")) == expected


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("a.parquet", parquet()[:-40], ""),
        ("a.parquet", parquet()[:60] + b"\xff" * 60 + parquet()[120:], ""),
        ("a.parquet", b"<html>no such page</html>", ""),
        ("a.parquet", b"", ""),
        ("a.jsonl.gz", gzip.compress(CONTENTS[".jsonl"] * 100, mtime=0)[:-9], "end-of-stream"),
        ("a.jsonl.gz", gzip.compress(CONTENTS[".jsonl"], mtime=0)[:-8] + b"another sum", ""),
        ("a.txt.gz", b"not compressed", "Not a gzipped file"),
        ("a.jsonl", b'{"text": "a"}\n["b"]\n', "line 2: expected an object, got a list"),
        ("a.jsonl", b'{"text": "a"}\n{"text": "b\n', "line 2: Unterminated"),
        ("a.txt", b"first\nna\xefve\n", "'utf-8' codec can't decode byte 0xef"),
        ("a.txt", "ünï".encode("utf-16"), "'utf-8' codec can't decode byte 0xff"),
        ("a.csv", b'text,source\n"a b",site,\n', "line 2: expected 2 cells (text, source)"),
        ("a.csv", b"text,source\na,site\nb\n", "line 3: expected 2 cells"),
        ("a.tsv", b'text\tlabel\n"two\nlines"\t1\na\t1\tb\n', "line 4: expected 2 cells"),
        ("a.csv", b'text,id\n"Go" he said,1\n', "',' expected after '\"'"),
    ],
)
def test_a_bad_file_is_one_sentence(tmp_path: Path, name: str, content: bytes, said: str) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(
        DamagedFile, match=rf"{name} is not readable as \w+ \(.*{re.escape(said)}.*\): correct"
    ) as raised:
        list(read_texts(tmp_path / name, "text"))
    assert "\n" not in str(raised.value)


def test_a_missing_column_is_named_and_an_empty_file_has_no_text(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").touch()
    assert not list(read_texts(tmp_path / "a.jsonl", "text"))
    (tmp_path / "b.jsonl").write_text('{"content": "x", "text": 3}\n')
    with pytest.raises(ValueError, match=r"b\.jsonl has no column 'contents' \(did you mean 'content'"):
        list(read_texts(tmp_path / "b.jsonl", "contents"))
    with pytest.raises(ValueError, match=r"column 'text' of .*b\.jsonl holds int and not text"):
        list(read_texts(tmp_path / "b.jsonl", "text"))


@pytest.mark.parametrize("suffix", [".parquet", ".csv", ".jsonl.gz"])
def test_an_error_of_the_system_is_no_damage(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"a{suffix}"
    path.touch()
    with hidden(path), pytest.raises(PermissionError):
        list(read_texts(path, "text"))


@given(
    st.lists(st.lists(st.text(st.characters(exclude_characters="\0", codec="utf-8")), min_size=2, max_size=2)),
    st.sampled_from([".csv", ".tsv"]),
    st.sampled_from(["\n", "\r\n", "\r"]),
)
@settings(max_examples=25)
def test_every_table_that_was_written_is_read_again(rows: list[list[str]], suffix: str, ends: str) -> None:
    with TemporaryDirectory() as folder:
        path = Path(folder, f"a{suffix}")
        with path.open("w", encoding="utf-8", newline="") as file:
            writer = csv.writer(
                file, delimiter="," if suffix == ".csv" else "\t", lineterminator=ends, quoting=csv.QUOTE_ALL
            )
            writer.writerows([["text", "other"], *rows])
        assert [[row["text"], row["other"]] for row in read_rows(path)] == rows


def test_numbers_keep_their_type_and_a_text_becomes_one_where_it_is_needed(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"id": 7, "score": 2.5}\n{"id": 123456789012345678901234567890}')
    ids = [7, 123456789012345678901234567890]
    assert read_table(tmp_path / "a.jsonl", ("id",)) == {"id": ids, "score": [2.5, None]}
    numbers = {"7": 7, " -7 ": -7, "+0.5": 0.5, "1e-3": 1e-3, "2.": 2.0}
    assert {text: as_number(text) for text in numbers} == numbers
    for text in ("", "0x7", "2,5", "7a", "2020-01-01", None, [1], 7):
        assert as_number(text) is text


def write(path: Path, content: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)


def test_a_corpus_may_be_nested_linked_compressed_and_in_a_column_of_any_name(tmp_path: Path) -> None:
    corpus = tmp_path / "corpora" / "web"
    write(corpus / "b" / "1.jsonl.gz", gzip.compress(b'{"body": "third"}\n'))
    write(corpus / "a" / "deep" / "2.jsonl", b'{"body": "second"}\n')
    write(corpus / "a" / "1.jsonl", b'{"body": "first"}\n')
    write(tmp_path / "far" / "1.jsonl", b'{"body": "fourth"}\n')
    (corpus / "linked").symlink_to(tmp_path / "far")
    for name in (".hidden/0.jsonl", "._a.jsonl", "README.md", "_SUCCESS"):
        write(corpus / name, b'{"body": "no part of it"}\n')
    with pytest.raises(ValueError, match="has no column 'text'"):
        DirectorySource(tmp_path).documents("web")
    unnamed = DirectorySource(tmp_path).corpus_origin("web")
    write(tmp_path / "corpora" / "columns.json", b'{"web": "body"}')
    source = DirectorySource(tmp_path)
    assert list(source.documents("web")) == ["first", "second", "third", "fourth"]
    assert source.corpus_origin("web") == f"{unnamed}:column=body"
    with hidden(corpus / "a"), pytest.raises(PermissionError):
        data_files(corpus)
    write(corpus / "notes.txt", b"of another format")
    with pytest.raises(ValueError, match=r"several formats \(\.jsonl, \.txt\): keep those of one"):
        DirectorySource(tmp_path).documents("web")


@pytest.mark.parametrize("suffix", [".jsonl", ".jsonl.gz", ".parquet"])
def test_the_size_of_a_corpus_is_estimated(tmp_path: Path, suffix: str) -> None:
    """Whatever stands beside the text."""
    rows = [{"meta": {"a": 1}, "text": text} for text in texts(500)]
    sink, lines = io.BytesIO(), "".join(json.dumps(row) + "\n" for row in rows).encode()
    pq.write_table(pa.Table.from_pylist(rows), sink, use_dictionary=False)
    content = {".jsonl": lines, ".jsonl.gz": gzip.compress(lines), ".parquet": sink.getvalue()}[suffix]
    write(tmp_path / "corpora" / "web" / f"a{suffix}", content)
    tokens, documents = DirectorySource(tmp_path).corpus_size("web")
    assert 250 <= documents <= 1000 and 0.5 < tokens * CHARACTERS_PER_TOKEN / sum(map(len, texts(500))) < 2


def test_tasks_and_pairs_may_be_in_any_format(tmp_path: Path) -> None:
    write(tmp_path / "glue" / "cola" / "train.csv", b"sentence,label\nNA,1\nb,0\n")
    write(tmp_path / "glue" / "cola" / "validation.jsonl.gz", gzip.compress(b'{"sentence": "a", "label": 1}\n'))
    write(tmp_path / "pairs" / "mine.jsonl", b'{"query": "q", "document": "d", "negatives": ["n"]}\n')
    write(tmp_path / "pairs" / "of_texts.csv", BOM + b"query,document,negative\n0007,2020-01-01,True\n")
    source = DirectorySource(tmp_path)
    assert source.tasks()["cola"] is None
    assert source.task_examples("cola", "train") == {"sentence": ["NA", "b"], "label": ["1", "0"]}
    assert source.task_examples("cola", "validation")["label"] == [1]
    assert source.pair_sets() == ("mine", "of_texts")
    found = [tuple(pair) for name in source.pair_sets() for pair in source.pairs(name)]
    assert found == [("q", "d", ("n",), None), ("0007", "2020-01-01", ("True",), None)]
    write(tmp_path / "glue" / "cola" / "train.parquet", CONTENTS[".parquet"])
    with pytest.raises(ValueError, match=r"holds train as train\.csv and as train\.parquet: keep one"):
        source.task_origin("cola")


def test_a_split_that_is_missing_or_empty_is_named(tmp_path: Path) -> None:
    files = SplitFiles("tags", tmp_path, "here", ("train", "dev"))
    assert files.why_missing() == "tags has no train, dev split in here"
    with pytest.raises(MissingData, match=f"tags has no train, dev split in here of {tmp_path}: put its files there"):
        files.present()
    write(files.folder / "dev.jsonl", b'{"form": ["a"], "upos": ["X"]}\n')
    assert files.read("dev", ("form", "upos")) == {"form": [["a"]], "upos": [["X"]]}
    with pytest.raises(MissingData, match="tags has no train split"):
        files.read("train", ("form",))
    write(files.folder / "dev.jsonl", b"")
    with pytest.raises(ValueError, match="has no rows: put the examples of tags there"):
        files.read("dev", ("form",))


def test_parquet_becomes_the_same_shards_as_ever(tmp_path: Path) -> None:
    """Tokens and columns are to the bit those that earlier readers made."""
    folder = tmp_path / "corpora" / "web"
    folder.mkdir(parents=True)
    first = {"text": [*texts(300), None, "  ", "NA"], "id": list(range(303))}
    pq.write_table(pa.table(first), folder / "b.parquet", row_group_size=64)
    pq.write_table(pa.table({"text": [*texts(200, seed=1), "ünï\nline"]}), folder / "a.parquet", row_group_size=1000)
    tokenizer = train_wordpiece(texts(50), 300)
    corpus = prepare(DirectorySource(tmp_path).documents("web"), tokenizer, tmp_path / "shards", origins={})
    assert (corpus.documents, corpus.tokens) == (502, 11_843)
    digest = hashlib.sha256((tmp_path / "shards" / "tokens-00000.bin").read_bytes())
    columns = np.load(tmp_path / "shards" / "documents-00000.npy")
    for name in ("length", "text_bytes", "text_hash"):
        digest.update(columns[name].tobytes())
    assert digest.hexdigest() == "96ca96399045f57683dae4ed052bb4e4e8378e86f267d5337fddeaf15bebf182"

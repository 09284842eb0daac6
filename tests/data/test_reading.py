"""Claims of reading: any common format gives the same texts in the same order, and a bad file is one clear sentence."""

import bz2
import csv
import gzip
import hashlib
import io
import json
import lzma
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from neobert.data.catalog import CHARACTERS_PER_TOKEN
from neobert.data.reading import data_files, read_rows, read_table, read_texts, text_size
from neobert.data.shards import prepare
from neobert.data.sources import DirectorySource
from neobert.data.tokenizers import train_wordpiece
from neobert.errors import DamagedFile
from tests.support.small_corpora import texts

TEXTS = ["first", 'two\nlines, a "quote" and a \t tab', "", "NA", "7", "ünï"]
LINES = ["one document a line", "", "ünï"]


def separated(separator: str) -> bytes:
    text = io.StringIO()
    rows = csv.writer(text, delimiter=separator)
    rows.writerows([("id", "text"), *enumerate(TEXTS)])
    return text.getvalue().encode()


def arrow() -> bytes:
    sink = io.BytesIO()
    table = pa.table({"id": range(len(TEXTS)), "text": TEXTS})
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return sink.getvalue()


def parquet() -> bytes:
    sink = io.BytesIO()
    pq.write_table(pa.table({"id": range(len(TEXTS)), "text": TEXTS}), sink, row_group_size=4)
    return sink.getvalue()


def zstandard(content: bytes) -> bytes:
    pytest.importorskip("zstandard")
    return pa.compress(content, codec="zstd", asbytes=True)


ROWS = [{"id": number, "text": text} for number, text in enumerate(TEXTS)]
CONTENTS: dict[str, bytes] = {
    ".parquet": parquet(),
    ".arrow": arrow(),
    ".jsonl": "".join(json.dumps(row) + "\n" for row in ROWS).encode(),
    ".json": json.dumps(ROWS).encode(),
    ".csv": separated(","),
    ".tsv": separated("\t"),
    ".txt": "\n".join([*LINES, ""]).encode(),
}
COMPRESSED: dict[str, Callable[[bytes], bytes]] = {
    ".gz": gzip.compress,
    ".bz2": bz2.compress,
    ".xz": lzma.compress,
    ".zst": zstandard,
}


@pytest.mark.parametrize("suffix", CONTENTS)
def test_every_format_gives_the_same_texts(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"a [b] *{suffix}"
    path.write_bytes(CONTENTS[suffix])
    assert list(read_texts(path, "text")) == (LINES if suffix == ".txt" else TEXTS)


@pytest.mark.parametrize("compression", COMPRESSED)
@pytest.mark.parametrize("suffix", [".jsonl", ".csv", ".txt"])
def test_text_formats_may_be_compressed(tmp_path: Path, suffix: str, compression: str) -> None:
    path = tmp_path / f"a{suffix}{compression}"
    path.write_bytes(COMPRESSED[compression](CONTENTS[suffix]))
    assert list(read_texts(path, "text")) == (LINES if suffix == ".txt" else TEXTS)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.parquet", b"PAR1 torn"),
        ("a.arrow", b"ARROW"),
        ("a.jsonl", b'{"text": "a"}\n{"text": "b\n'),
        ("a.json", b'[{"text": "a"}, '),
        ("a.jsonl.gz", gzip.compress(CONTENTS[".jsonl"], mtime=0)[:40]),
        ("a.jsonl.xz", b"no xz at all, but long enough"),
        ("a.csv", b'text,id\n"a,1\n'),
        ("a.jsonl", b'{"text": "a"}\n["b"]\n'),
        ("a.jsonl", b'{"text": "a"}\n{"text": "half a pair \\ud800"}\n'),
        ("a.csv", b"text,id\na,1\nb, an unquoted comma,2\n"),
        ("a.txt", b"\xff\xfe\n"),
        *((f"a.txt{suffix}", b"no such compression at all") for suffix in (".gz", ".bz2", ".xz", ".zst")),
    ],
)
def test_a_damaged_file_is_one_sentence(tmp_path: Path, name: str, content: bytes) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(DamagedFile, match=rf"{name} is not readable as \w+ \(.+\): fetch it again") as raised:
        list(read_texts(tmp_path / name, "text"))
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("compression", COMPRESSED)
@pytest.mark.parametrize("suffix", [".jsonl", ".csv", ".txt"])
def test_a_truncated_file_is_damaged_and_not_read_as_far_as_it_goes(
    tmp_path: Path, suffix: str, compression: str
) -> None:
    content = CONTENTS[suffix] * 100
    path = tmp_path / f"a{suffix}{compression}"
    whole = COMPRESSED[compression](content)
    path.write_bytes(whole[:-9])
    with pytest.raises(DamagedFile, match="not readable as"):
        list(read_texts(path, "text"))


METADATA = {
    "null first": ("null", '"2020"'),
    "another type": ("1", '"a7"'),
    "a struct that gains a field": ('{"a": 1}', '{"a": 1, "b": 2}'),
    "a list that becomes an object": ("[1]", '{"a": 1}'),
}


@pytest.mark.parametrize("metadata", METADATA)
def test_columns_that_nobody_reads_break_no_json_lines(tmp_path: Path, metadata: str) -> None:
    """`datasets` takes the types of all columns from the first 10 MB."""
    first, later = METADATA[metadata]
    text = "2020-01-01" + " " * 4000
    lines = [*[f'{{"text": "{text}", "meta": {first}}}'] * 3000, f'{{"text": "b", "meta": {later}, "new": 1}}']
    (tmp_path / "a.jsonl").write_text("\n".join(lines))
    assert list(read_texts(tmp_path / "a.jsonl", "text")) == [text] * 3000 + ["b"]
    assert [row["text"] for row in read_rows(tmp_path / "a.jsonl")] == [text] * 3000 + ["b"]


def test_json_lines_of_dates_are_texts(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"text": "2020-01-01"}\n')
    assert list(read_texts(tmp_path / "a.jsonl", "text")) == ["2020-01-01"]


def test_a_number_that_is_missing_late_breaks_no_csv(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("text,views\n" + "a,1\n" * 10_000 + "b,\n")
    assert list(read_texts(tmp_path / "a.csv", "text")) == ["a"] * 10_000 + ["b"]


def test_reading_asks_no_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`datasets` counts uses by a request, which waits for seconds in jobs without a network."""
    monkeypatch.setattr("datasets.config.HF_HUB_OFFLINE", False)
    monkeypatch.setattr("datasets.config.HF_UPDATE_DOWNLOAD_COUNTS", True)
    asked: list[object] = []
    monkeypatch.setattr("datasets.load.get_session", lambda: asked.append(1))
    for suffix in (".parquet", ".jsonl"):
        (tmp_path / f"a{suffix}").write_bytes(CONTENTS[suffix])
        assert list(read_texts(tmp_path / f"a{suffix}", "text")) == TEXTS
    assert not asked


def test_a_tsv_table_whose_quotes_swallow_rows_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.tsv").write_text('text\tlabel\n"Go away\t1\nfine\t0\n"I like it\t1\n')
    with pytest.raises(ValueError, match=r"a\.tsv has a quote that begins a cell and ends in another row"):
        read_table(tmp_path / "a.tsv", ("label",))


def test_a_damaged_page_of_a_table_names_the_file(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"label": range(5000), "text": [f"word {n}" * 20 for n in range(5000)]}), path)
    content = bytearray(path.read_bytes())
    content[200:4000] = b"\xff" * 3800
    path.write_bytes(content)
    with pytest.raises(DamagedFile, match=r"a\.parquet is not readable as parquet"):
        read_table(path, ("label",))


def test_the_size_of_a_parquet_file_is_that_of_its_text_whatever_stands_before_it(tmp_path: Path) -> None:
    texts, meta = ["word " * 200] * 100, [{"a": 1, "b": 2}] * 100
    for name, columns in (("a", {"meta": meta, "text": texts}), ("b", {"text": texts, "meta": meta})):
        pq.write_table(pa.table(columns), tmp_path / f"{name}.parquet", use_dictionary=False)
    assert text_size(tmp_path / "a.parquet", "text") == text_size(tmp_path / "b.parquet", "text")


def test_linked_folders_are_read_once(tmp_path: Path) -> None:
    far, corpus = tmp_path / "far", tmp_path / "corpus"
    write(far / "deep" / "a.jsonl", CONTENTS[".jsonl"])
    write(corpus / "b.jsonl", CONTENTS[".jsonl"])
    (corpus / "linked").symlink_to(far)
    (corpus / "linked too").symlink_to(far)
    (far / "back").symlink_to(corpus)
    names = [path.relative_to(corpus).as_posix() for path in data_files(corpus)]
    assert names == ["b.jsonl", "linked/deep/a.jsonl"]


def test_an_empty_file_holds_no_text_and_another_column_is_named(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").touch()
    assert not list(read_texts(tmp_path / "a.jsonl", "text"))
    (tmp_path / "b.jsonl").write_text('{"content": "x", "text": 3}\n')
    with pytest.raises(ValueError, match=r"b\.jsonl has no column 'contents' \(did you mean 'content'"):
        list(read_texts(tmp_path / "b.jsonl", "contents"))
    with pytest.raises(ValueError, match=r"column 'text' of .*b\.jsonl holds int and not text"):
        list(read_texts(tmp_path / "b.jsonl", "text"))


def write(path: Path, content: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)


def test_a_corpus_may_be_nested_compressed_and_in_a_column_of_any_name(tmp_path: Path) -> None:
    corpus = tmp_path / "corpora" / "web"
    write(corpus / "b" / "1.jsonl.gz", gzip.compress(b'{"body": "third"}\n'))
    write(corpus / "a" / "deep" / "2.jsonl", b'{"body": "second"}\n')
    write(corpus / "a" / "1.jsonl", b'{"body": "first"}\n')
    write(corpus / ".hidden" / "0.jsonl", b'{"body": "no part of it"}\n')
    with pytest.raises(ValueError, match="has no column 'text'"):
        DirectorySource(tmp_path).documents("web")
    unnamed = DirectorySource(tmp_path).corpus_origin("web")
    write(tmp_path / "corpora" / "columns.json", b'{"web": "body"}')
    source = DirectorySource(tmp_path)
    assert list(source.documents("web")) == ["first", "second", "third"]
    assert source.corpus_origin("web") == f"{unnamed}:column=body"
    write(corpus / "notes.txt", b"of another format")
    with pytest.raises(ValueError, match=r"several formats \(\.jsonl, \.txt\): keep those of one"):
        DirectorySource(tmp_path).documents("web")


@pytest.mark.parametrize("suffix", [".jsonl", ".jsonl.gz"])
def test_the_size_of_a_corpus_is_estimated(tmp_path: Path, suffix: str) -> None:
    content = "".join(json.dumps({"text": text}) + "\n" for text in texts(500)).encode()
    write(tmp_path / "corpora" / "web" / f"a{suffix}", gzip.compress(content) if suffix.endswith(".gz") else content)
    tokens, documents = DirectorySource(tmp_path).corpus_size("web")
    assert 250 <= documents <= 1000 and 0.5 < tokens * CHARACTERS_PER_TOKEN / sum(map(len, texts(500))) < 2


def test_tasks_and_pairs_may_be_in_any_format(tmp_path: Path) -> None:
    write(tmp_path / "glue" / "cola" / "train.csv", b"sentence,label\nNA,1\nb,0\n")
    write(tmp_path / "glue" / "cola" / "validation.jsonl.gz", gzip.compress(b'{"sentence": "a", "label": 1}\n'))
    write(tmp_path / "pairs" / "mine.jsonl", b'{"query": "q", "document": "d", "negatives": ["n"]}\n')
    source = DirectorySource(tmp_path)
    assert source.tasks()["cola"] is None
    assert source.task_examples("cola", "train") == {"sentence": ["NA", "b"], "label": [1, 0]}
    assert source.task_examples("cola", "validation")["label"] == [1]
    assert source.pair_sets() == ("mine",) and [tuple(pair) for pair in source.pairs("mine")] == [
        ("q", "d", ("n",), None)
    ]
    write(tmp_path / "glue" / "cola" / "train.tsv", b"sentence\tlabel\nNA\t1\n")
    with pytest.raises(ValueError, match=r"holds train as train\.csv and as train\.tsv: keep one"):
        source.task_origin("cola")


def test_parquet_becomes_the_same_shards_as_ever(tmp_path: Path) -> None:
    """Tokens and columns are to the bit those that were made before `datasets` read the files."""
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


def test_reading_imports_no_torch(tmp_path: Path) -> None:
    """A second of the processor in each job that tokenises, which needs none of it."""
    (tmp_path / "a.jsonl").write_bytes(CONTENTS[".jsonl"])
    code = (
        "import sys; from pathlib import Path; from neobert.data.reading import read_texts; "
        "list(read_texts(Path(sys.argv[1]), 'text')); sys.exit('torch' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code, str(tmp_path / "a.jsonl")], check=True)

"""Claims of reading: any common format gives the same texts in the same order, and a bad file is one clear sentence."""

import bz2
import csv
import gzip
import hashlib
import io
import json
import lzma
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from neobert.data.catalog import CHARACTERS_PER_TOKEN
from neobert.data.reading import as_number, data_files, read_rows, read_table, read_texts
from neobert.data.shards import prepare
from neobert.data.sources import DirectorySource, NoCorpus
from neobert.data.tokenizers import train_wordpiece
from neobert.errors import DamagedFile, MissingData
from tests.support.hidden import hidden
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


def refusal(folder: Path, name: str, content: bytes) -> ValueError:
    """The one sentence with which a file is refused."""
    (folder / name).write_bytes(content)
    with pytest.raises(ValueError) as raised:
        list(read_texts(folder / name, "text"))
    assert "\n" not in str(raised.value) and "fetch it again" not in str(raised.value)
    return raised.value


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.parquet", b"PAR1 torn"),
        ("a.parquet", parquet()[:-40]),
        ("a.parquet", parquet()[:60] + b"\xff" * 60 + parquet()[120:]),
        ("a.arrow", b"ARROW1 torn"),
        ("a.arrow", arrow()[:-40]),
        ("a.jsonl.gz", gzip.compress(b'{"text": "a"}\n', mtime=0)[:-8] + b"another sum"),
    ],
)
def test_a_damaged_file_is_one_sentence(tmp_path: Path, name: str, content: bytes) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(DamagedFile, match=rf"{name} is not readable as \w+ \(.+\): fetch it again") as raised:
        list(read_texts(tmp_path / name, "text"))
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("name", ["a.parquet", "a.arrow", "a.txt.gz", "a.csv.bz2", "a.jsonl.xz", "a.txt.zst"])
def test_a_file_that_cannot_be_empty_and_is_was_not_fetched(tmp_path: Path, name: str) -> None:
    (tmp_path / name).touch()
    with pytest.raises(DamagedFile, match=rf"{name} is empty, which no \w+ file is: fetch it again"):
        list(read_texts(tmp_path / name, "text"))


@pytest.mark.parametrize(
    "content", [b'{"text": "a"}\n{"text": "b', b'[{"text": "a"}, ', b'[{"text": "a"}, {"text": "b']
)
def test_json_that_ends_early_is_damaged(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "a.json").write_bytes(content)
    with pytest.raises(DamagedFile, match=r"a\.json ends within .*: fetch it again"):
        list(read_texts(tmp_path / "a.json", "text"))


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("a.jsonl", b'{"text": "a"}\n["b"]\n', "line 2 is no JSON object (it is a list)"),
        ("a.jsonl", b'{"text": "a"}\n{"text": "b\n', "line 2 is no JSON object (Unterminated"),
        ("a.jsonl", b'{"text": "a"}\n{"text": "b", "text": "c"}\n', "line 2 is no JSON object (the name 'text' comes"),
        ("a.jsonl", b'{"text": "a"}\n{"text": "half a pair \\ud800"}\n', "line 2 is no JSON object"),
        ("a.json", b'[{"text": "a"}, "b"]', "object 2 cannot be read (it is a str)"),
        ("a.json", b'[{"text": "a"}\n{"text": "b"}]', "object 1 cannot be read (Expecting ','"),
        ("a.jsonl", b'{"text": NaN}\n', "column 'text' of"),
        ("a.txt", "ünï".encode("utf-16"), "a.txt is UTF-16"),
        ("a.csv", "text\nünï".encode("utf-16-le"), "a.csv, line 1: a NUL character"),
        ("a.txt", b"first\nna\xefve\n", "a.txt, line 2: not UTF-8"),
        ("a.jsonl", b'{"text": "na\xefve"}\n', "a.jsonl, line 1: not UTF-8"),
        ("a.txt", b"first\n\0\0\0\0", "a.txt, line 2: a NUL character"),
        ("a.parquet", b"<html>no such page</html>", "a.parquet is no parquet file (it begins with b'<html>no')"),
        ("a.arrow", b"no arrow at all", "a.arrow is no arrow file"),
        *((f"a.txt{suffix}", b"not compressed", f"a.txt{suffix} is no") for suffix in (".gz", ".bz2", ".xz", ".zst")),
    ],
)
def test_bad_content_is_refused_with_its_place(tmp_path: Path, name: str, content: bytes, said: str) -> None:
    assert said in str(refusal(tmp_path, name, content))


@pytest.mark.parametrize("name", ["a.parquet", "a.arrow"])
def test_text_of_a_binary_file_that_is_not_utf8_is_refused_with_its_row(tmp_path: Path, name: str) -> None:
    raw = pa.array([b"whole"] * 1500 + [b"na\xefve"])
    table = pa.table({"text": pa.Array.from_buffers(pa.string(), len(raw), raw.buffers())})
    if name == "a.parquet":
        pq.write_table(table, tmp_path / name)
    else:
        with pa.OSFile(str(tmp_path / name), "wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
            writer.write_table(table)
    with pytest.raises(ValueError, match=rf"{name}, row 1501 has text that is not UTF-8 \('utf-8' codec.*\): write"):
        list(read_texts(tmp_path / name, "text"))


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("a.csv", b'text,source\n"a b",site,\n', "line 2: 3 cells under 2 names (text, source)"),
        ("a.csv", b"text,source\na,site\nb\n", "line 3: 1 cell under 2 names"),
        ("a.csv", b"text\nan unquoted, comma\n", "line 2: 2 cells under 1 name (text)"),
        ("a.csv", b"text\nends in a comma,\n", "line 2: 2 cells under 1 name"),
        ("a.tsv", b'text\tlabel\n"two\nlines"\t1\na\t1\tb\n', "line 4: 3 cells under 2 names"),
        ("a.csv", b"text,id\ra,1\rb\r", "line 3: 1 cell under 2 names"),
        ("a.csv.gz", gzip.compress(b"text,id\na\n", mtime=0), "line 2: 1 cell under 2 names"),
        ("a.csv", b"text,text\na,b\n", "has two columns named 'text'"),
        ("a.csv", b'text,id\n"a,1\nb,2\n', "line 2 has a quote that begins a cell and does not end it"),
        ("a.csv", b'text,id\n"Go" he said,1\n', "line 2 has a quote that begins a cell and does not end it"),
        ("a.csv", b"text;id\na;1\n", "has no column 'text'"),
        ("a.csv", b"Text,id\n", "has no column 'text' (did you mean 'Text'?)"),
    ],
)
def test_rows_that_do_not_fit_the_header_are_refused(tmp_path: Path, name: str, content: bytes, said: str) -> None:
    """Before, the columns were shifted, or cells left out."""
    assert said in str(refusal(tmp_path, name, content))
    with pytest.raises(ValueError, match=re.escape(said)):
        read_table(tmp_path / name, ("text",))


def test_a_column_that_comes_twice_is_refused_in_every_format(tmp_path: Path) -> None:
    table = pa.Table.from_arrays([pa.array(["a"]), pa.array(["b"])], names=["text", "text"])
    pq.write_table(table, tmp_path / "a.parquet")
    with pa.OSFile(str(tmp_path / "a.arrow"), "wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table)
    for name in ("a.parquet", "a.arrow"):
        with pytest.raises(ValueError, match=f"{name} has two columns named 'text'"):
            list(read_texts(tmp_path / name, "text"))


@given(
    st.lists(st.lists(st.text(st.characters(exclude_characters="\0", codec="utf-8")), min_size=2, max_size=2)),
    st.sampled_from([".csv", ".tsv"]),
    st.sampled_from(["\n", "\r\n", "\r"]),
)
def test_every_table_that_was_written_is_read_again(rows: list[list[str]], suffix: str, ends: str) -> None:
    with TemporaryDirectory() as folder:
        path = Path(folder, f"a{suffix}")
        with path.open("w", encoding="utf-8", newline="") as file:
            writer = csv.writer(
                file, delimiter="," if suffix == ".csv" else "\t", lineterminator=ends, quoting=csv.QUOTE_ALL
            )
            writer.writerows([["text", "other"], *rows])
        found = [[row["text"], row["other"]] for row in read_rows(path)]
    if found and rows:
        rows = [[rows[0][0].removeprefix("\ufeff"), rows[0][1].removeprefix("\ufeff")], *rows[1:]]
    assert found == rows


def test_numbers_of_json_keep_their_type_and_size(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text('[{"id": 7, "score": 2.5},\n {"id": 123456789012345678901234567890}]')
    ids = [7, 123456789012345678901234567890]
    assert read_table(tmp_path / "a.json", ("id",)) == {"id": ids, "score": [2.5, None]}


def test_a_text_becomes_a_number_where_one_is_needed() -> None:
    numbers = {"7": 7, " -7 ": -7, "+0.5": 0.5, ".5": 0.5, "1e-3": 1e-3, "2.": 2.0, "True": True, "false": False}
    assert {text: as_number(text) for text in numbers} == numbers
    for text in ("", "nan", "inf", "1_000", "0x7", "2,5", "−1", "٣", "7a", "2020-01-01", None, [1], 7):
        assert as_number(text) is text


BOM = b"\xef\xbb\xbf"


@pytest.mark.parametrize("suffix", [".jsonl", ".json", ".csv", ".tsv", ".txt"])
def test_a_byte_order_mark_is_no_part_of_any_text(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"a{suffix}"
    path.write_bytes(BOM + CONTENTS[suffix])
    assert list(read_texts(path, "text")) == (LINES if suffix == ".txt" else TEXTS)
    assert "text" in next(iter(read_rows(path)))
    if suffix == ".txt":
        path.write_bytes(BOM + b"of two files\n" + BOM + b"joined to one\n")
        assert list(read_texts(path, "text")) == ["of two files", "joined to one"]


def test_files_of_several_members_and_large_windows_are_read_wholly(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl.gz").write_bytes(gzip.compress(b'{"text": "a"}\n') + gzip.compress(b'{"text": "b"}\n'))
    (tmp_path / "b.txt.zst").write_bytes(zstandard(b"a\n") + b"\x50\x2a\x4d\x18\2\0\0\0no" + zstandard(b"b\n"))
    long = pytest.importorskip("zstandard").ZstdCompressionParameters(window_log=31, enable_ldm=True)
    compressor = pytest.importorskip("zstandard").ZstdCompressor(compression_params=long).compressobj()
    (tmp_path / "c.txt.zst").write_bytes(compressor.compress(b"a\nb\n") + compressor.flush())
    for path in tmp_path.iterdir():
        assert list(read_texts(path, "text")) == ["a", "b"], path


def test_what_a_library_cannot_read_is_not_called_damaged(tmp_path: Path) -> None:
    """Fetching a whole file again gives the same file."""
    content = parquet()
    assert "encrypted" in str(refusal(tmp_path, "a.parquet", content[:-4] + b"PARE"))
    codec = content.rindex(b"text\x15\x02") + len(b"text\x15")  # of the column, in the footer
    damaged = content[:codec] + bytes([2 * 13]) + content[codec + 1 :]
    assert "Unsupported compression codec" in str(refusal(tmp_path, "a.parquet", damaged))


@pytest.mark.parametrize("suffix", [".parquet", ".csv", ".jsonl.gz"])
def test_an_error_of_the_system_is_no_damage(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"a{suffix}"
    path.touch()
    with hidden(path), pytest.raises(PermissionError):
        list(read_texts(path, "text"))


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


def test_columns_that_nobody_reads_break_no_json_lines(tmp_path: Path) -> None:
    """A reader that takes the types of all columns from the first 10 MB would fail."""
    text = "2020-01-01" + " " * 4000
    lines = [*[f'{{"text": "{text}", "meta": [1]}}'] * 3000, '{"text": "b", "meta": {"a": 1}, "new": 1}']
    (tmp_path / "a.jsonl").write_text("\n".join(lines))
    assert list(read_texts(tmp_path / "a.jsonl", "text")) == [text] * 3000 + ["b"]
    assert [row["text"] for row in read_rows(tmp_path / "a.jsonl")] == [text] * 3000 + ["b"]


def test_a_tsv_table_whose_quotes_swallow_rows_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.tsv").write_text('text\tlabel\n"Go away\t1\nfine\t0\nI like it"\t1\n')
    with pytest.raises(ValueError, match=r"a\.tsv has a quote that begins a cell and ends in another row"):
        read_table(tmp_path / "a.tsv", ("label",))


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
    source = DirectorySource(tmp_path)
    assert source.tasks()["cola"] is None
    assert source.task_examples("cola", "train") == {"sentence": ["NA", "b"], "label": ["1", "0"]}
    assert source.task_examples("cola", "validation")["label"] == [1]
    assert source.pair_sets() == ("mine",) and [tuple(pair) for pair in source.pairs("mine")] == [
        ("q", "d", ("n",), None)
    ]
    write(tmp_path / "glue" / "cola" / "train.parquet", CONTENTS[".parquet"])
    with pytest.raises(ValueError, match=r"holds train as train\.csv and as train\.parquet: keep one"):
        source.task_origin("cola")


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


def test_reading_imports_no_torch(tmp_path: Path) -> None:
    """A second of the processor in each job that tokenises, which needs none of it."""
    (tmp_path / "a.jsonl").write_bytes(CONTENTS[".jsonl"])
    code = (
        "import sys; from pathlib import Path; from neobert.data.reading import read_texts; "
        "list(read_texts(Path(sys.argv[1]), 'text')); sys.exit('torch' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code, str(tmp_path / "a.jsonl")], check=True)


# Folders that are not what they seem


def corpus_in(folder: Path, *names: str) -> DirectorySource:
    for name in names:
        write(
            folder / "corpora" / "web" / name, CONTENTS[".parquet"] if name.endswith("parquet") else b'{"text": "a"}\n'
        )
    return DirectorySource(folder)


def test_parquet_beside_another_format_is_refused_and_parquet_at_any_depth_is_read(tmp_path: Path) -> None:
    """Before, other files than the parquet files at the top were left out."""
    source = corpus_in(tmp_path, "a.parquet", "deep/b.parquet", "part.parquet/part-00000.snappy.parquet")
    assert list(source.documents("web")) == 3 * TEXTS
    with pytest.raises(ValueError, match=r"several formats \(\.jsonl, \.parquet\): keep those of one"):
        corpus_in(tmp_path, "a.jsonl.gz").corpus_origin("web")


@pytest.mark.parametrize("name", ["b.zip", "b.jsonl.lz4", "b.jsonl.part", "b.pq", "deep/b.tar.gz", "b.parquet.gz"])
def test_what_would_be_left_out_is_refused(tmp_path: Path, name: str) -> None:
    source = corpus_in(tmp_path, "a.jsonl", name)
    with pytest.raises(ValueError, match=rf"holds {Path(name).name}, which would not be read: unpack or convert it"):
        source.corpus_origin("web")


def test_pairs_of_a_table_are_texts_and_the_tokenizer_may_begin_with_a_mark(tmp_path: Path) -> None:
    write(tmp_path / "pairs" / "mine.csv", BOM + b"query,document,negative\n0007,2020-01-01,True\n")
    assert [tuple(pair) for pair in DirectorySource(tmp_path).pairs("mine")] == [
        ("0007", "2020-01-01", ("True",), None)
    ]
    for content, said in ((b"query,document\na\n", "line 2: 1 cell under 2"), (b"query,query\na,b\n", "two columns")):
        write(tmp_path / "pairs" / "mine.csv", content)
        with pytest.raises(ValueError, match=said):
            list(DirectorySource(tmp_path).pairs("mine"))
    folder = tmp_path / "tokenizers" / "bert-base-uncased"
    trained = train_wordpiece(texts(50), 100)
    write(folder / "tokenizer.json", BOM + trained.content)
    assert DirectorySource(tmp_path).tokenizer("wordpiece", 100, tmp_path).content == trained.content
    write(folder / "tokenizer.json", b'{"version": "9.0"}')
    with pytest.raises(ValueError, match=r"not readable as a tokenizer .*: update the package tokenizers"):
        DirectorySource(tmp_path).tokenizer("wordpiece", 100, tmp_path)


def test_notes_markers_and_hidden_files_are_no_texts(tmp_path: Path) -> None:
    names = ("README.md", "LICENSE", "_SUCCESS", "._a.jsonl", ".DS_Store", "a.jsonl.sha256", ".part-0.crc")
    write(tmp_path / "pairs" / "._mine.jsonl", b"\0\5\26\7")
    source = corpus_in(tmp_path, "A.JSONL", *names)
    assert list(source.documents("web")) == ["a"] and source.pair_sets() == ()


def test_links_to_nowhere_are_missing_data(tmp_path: Path) -> None:
    source = corpus_in(tmp_path, "a.jsonl")
    web = tmp_path / "corpora" / "web"
    for name, target in (("b.jsonl", "../gone.jsonl"), ("folder", "../gone"), ("c.jsonl", "c.jsonl")):
        (web / name).symlink_to(target)
        with pytest.raises(MissingData, match=rf"{name} is a link to {re.escape(target)}, which is not there: restore"):
            source.corpus_origin("web")
        (web / name).unlink()
    (tmp_path / "corpora" / "wikibook").symlink_to(tmp_path / "gone")
    with pytest.raises(MissingData, match=r"wikibook is a link to .*gone, which is not there") as raised:
        source.corpus_origin("wikibook")
    assert not isinstance(raised.value, NoCorpus)
    (tmp_path / "pairs").mkdir()
    (tmp_path / "pairs" / "mine.jsonl").symlink_to("gone")
    with pytest.raises(MissingData, match=r"mine\.jsonl is a link to gone"):
        source.pair_sets()


def test_pointers_in_place_of_contents_are_missing_data(tmp_path: Path) -> None:
    pointer = b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 12345\n"
    for name, content in (
        ("a.txt", pointer),
        ("a.parquet", pointer),
        ("a.csv", b"/annex/objects/SHA256E-s1--4d.csv\n"),
    ):
        write(tmp_path / name / "corpora" / "web" / name, content)
        write(tmp_path / name / "glue" / "cola" / f"train{Path(name).suffix}", content)
        source = DirectorySource(tmp_path / name)
        for find in (lambda source=source: source.corpus_origin("web"), source.tasks):
            with pytest.raises(MissingData, match="is a pointer in place of the content: fetch it with `git lfs pull`"):
                find()
    write(tmp_path / "tokenizers" / "bert-base-uncased" / "tokenizer.json", pointer)
    with pytest.raises(MissingData, match=r"tokenizer\.json is a pointer"):
        DirectorySource(tmp_path).tokenizer("wordpiece", 100, tmp_path)


def test_folders_and_pipes_with_the_name_of_a_file_are_refused(tmp_path: Path) -> None:
    write(tmp_path / "glue" / "cola" / "train.parquet" / "part-00000.parquet", CONTENTS[".parquet"])
    with pytest.raises(ValueError, match=r"train\.parquet is a folder with the name of a file"):
        DirectorySource(tmp_path).tasks()
    source = corpus_in(tmp_path, "a.jsonl")
    os.mkfifo(tmp_path / "corpora" / "web" / "b.jsonl")
    with pytest.raises(ValueError, match=r"b\.jsonl is no regular file"):
        source.corpus_origin("web")


def test_missing_parts_of_a_numbered_set_are_said(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    corpus_in(tmp_path, "train-00000-of-00003.jsonl", "train-00002-of-00003.jsonl").corpus_origin("web")
    assert "has 2 of the 3 files train-*-of-00003; only these are read" in caplog.text
    caplog.clear()
    corpus_in(tmp_path, "train-00001-of-00003.jsonl").corpus_origin("web")
    assert not caplog.text


def test_a_folder_that_cannot_be_listed_is_not_left_out(tmp_path: Path) -> None:
    source = corpus_in(tmp_path, "a.jsonl", "deep/b.jsonl")
    with hidden(tmp_path / "corpora" / "web" / "deep"), pytest.raises(PermissionError, match="deep"):
        source.corpus_origin("web")


def test_names_of_files_need_not_be_utf8(tmp_path: Path) -> None:
    source = corpus_in(tmp_path, "a.jsonl")
    before = source.corpus_origin("web")
    web = tmp_path / "corpora" / "web"
    Path(os.fsdecode(os.fsencode(web / "caf") + b"\xe9.jsonl")).write_bytes(b'{"text": "b"}\n')
    source = DirectorySource(tmp_path)
    assert source.corpus_origin("web") != before and source.corpus_size("web")[1] > 0
    assert list(source.documents("web")) == ["a", "b"]

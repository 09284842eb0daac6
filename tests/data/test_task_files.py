"""Files of a task: a folder with a table or a CoNLL file for each split."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from neobert.data.task_files import SplitFiles, conll_file, read_conll
from neobert.errors import DamagedFile, MissingData
from tests.support.tree_copy import REPOSITORY

TREEBANK = REPOSITORY.parent / "shared/data/ud/EWT"
CONLLU = """# sent_id = one
# text = I don't.
1\tI\tI\tPRON\tPRP\t_\t2\tnsubj\t_\t_
2-3\tdon't\t_\t_\t_\t_\t_\t_\t_\t_
2\tdo\tdo\tAUX\tVBP\t_\t0\troot\t_\t_
3\tn't\tnot\tPART\tRB\t_\t2\tadvmod\t_\tSpaceAfter=No
3.1\tgo\tgo\tVERB\tVB\t_\t_\t_\t2:conj\t_
4\t.\t.\tPUNCT\t.\t_\t2\tpunct\t_\t_

# sent_id = two
1\t#\t#\tSYM\tNN\t_\t0\troot\t_\t_
2\t1 000\t1000\tNUM\tCD\t_\t1\tnummod\t_\t_
"""


def written(folder: Path, **files: str) -> Path:
    folder.mkdir(exist_ok=True)
    for name, content in files.items():
        (folder / name.replace("__", ".").replace("_", "-")).write_text(content)
    return folder


def test_words_of_a_treebank_are_the_syntactic_ones(tmp_path: Path) -> None:
    """Comments, the surface form of a multiword token and empty nodes are left out; a word may be # or hold a space."""
    path = written(tmp_path, en_dev__conllu=CONLLU) / "en-dev.conllu"
    columns = read_conll(path, ("form", "upos"))
    assert columns["form"] == [["I", "do", "n't", "."], ["#", "1 000"]]
    assert columns["upos"] == [["PRON", "AUX", "PART", "PUNCT"], ["SYM", "NUM"]]


def test_columns_of_other_files_are_numbered(tmp_path: Path) -> None:
    """As in CoNLL-2003: columns between spaces, and a line between documents."""
    text = "-DOCSTART- -X- -X- O\n\nEU NNP B-NP B-ORG\nrejects VBZ B-VP O\n\n\n# NN B-NP O\n"
    columns = read_conll(written(tmp_path, train__conll=text) / "train.conll", ("1", "4"))
    assert columns == {
        "1": [["EU", "rejects"], ["#"]],
        "2": [["NNP", "VBZ"], ["NN"]],
        "3": [["B-NP", "B-VP"], ["B-NP"]],
        "4": [["B-ORG", "O"], ["O"]],
    }


@pytest.mark.parametrize(
    "text",
    [
        "# sent_id = one\n# text = # I\n#\tO\nI\tO\n",  # as in Universal NER
        "# id 5239d808\tdomain=en\n# O\nI O\n",  # as in MultiCoNER
        "-DOCSTART-\n\n# sent_id = one\n# O\nI O\n",
    ],
)
def test_comments_of_other_files_are_left_out_and_the_word_hash_is_not(tmp_path: Path, text: str) -> None:
    columns = read_conll(written(tmp_path, dev__iob2=text) / "dev.iob2", ("1",))
    assert columns == {"1": [["#", "I"]], "2": [["O", "O"]]}


@given(
    st.lists(
        st.lists(st.tuples(*[st.text("ab#é-\u2028\x85", min_size=1)] * 2), min_size=1, max_size=4),
        min_size=1,
        max_size=4,
    )
)
def test_every_written_sentence_is_read_again(sentences: list[list[tuple[str, str]]]) -> None:
    from tempfile import TemporaryDirectory

    with TemporaryDirectory() as folder:
        path = Path(folder, "train.iob2")
        path.write_text("\n\n".join("\n".join("\t".join(word) for word in each) for each in sentences), "utf-8")
        columns = read_conll(path, ("1", "2"))
    assert [list(zip(*each, strict=True)) for each in zip(columns["1"], columns["2"], strict=True)] == sentences


def test_files_that_are_none_are_refused_with_the_place(tmp_path: Path) -> None:
    folder = written(tmp_path, train__conll="a B\nb\n", dev__conllu="1\ta\n", test__conll="a B\n")
    with pytest.raises(DamagedFile, match=r"train\.conll, line 2: 1 columns, and not 2"):
        read_conll(folder / "train.conll", ("1",))
    with pytest.raises(DamagedFile, match=r"dev\.conllu, line 1: 2 columns, and not 10"):
        read_conll(folder / "dev.conllu", ("form",))
    with pytest.raises(ValueError, match=r"test\.conll has no column 'upos'"):
        read_conll(folder / "test.conll", ("upos",))
    (folder / "train.conll").write_bytes(b"\xff\xfe\x00 B\n")
    with pytest.raises(DamagedFile, match="cannot be read as text"):
        read_conll(folder / "train.conll", ("1",))


def test_a_split_is_a_table_or_a_file_named_as_treebanks_name_it(tmp_path: Path) -> None:
    files = SplitFiles("tags", tmp_path, "here", ("train", "dev"))
    assert files.why_missing() == "tags has no train, dev split in here"
    with pytest.raises(MissingData, match=f"tags has no train, dev split in here of {tmp_path}: put its files there"):
        files.present()
    written(files.folder, en_ewt_ud_train__conllu=CONLLU)
    (files.folder / "dev.jsonl").write_text(json.dumps({"form": ["a"], "upos": ["X"]}) + "\n")
    assert files.why_missing() is None and len(files.present()) == 2
    assert files.read("dev", ("form", "upos")) == {"form": [["a"]], "upos": [["X"]]}
    assert len(files.read("train", ("form",))["form"]) == 2
    with pytest.raises(MissingData, match="tags has no test split"):
        files.read("test", ("form",))
    (files.folder / "dev.jsonl").write_text("")
    with pytest.raises(ValueError, match="has no rows: put the examples of tags there"):
        files.read("dev", ("form",))
    written(files.folder, other_train__conllu=CONLLU)
    with pytest.raises(ValueError, match=r"holds train as .* and as .*: keep one"):
        conll_file(files.folder, "train")


@pytest.mark.skipif(not TREEBANK.is_dir(), reason="the treebank is not here")
@pytest.mark.parametrize("split", ["dev", "test"])
def test_the_official_treebank_has_the_words_and_tags_of_its_statistics(split: str) -> None:
    """Sentences and words as stats.xml counts them, and the same as a second reading of the files."""
    path = conll_file(TREEBANK, split)
    assert path is not None
    columns = read_conll(path, ("form", "upos", "xpos"))
    words = sum(map(len, columns["form"]))
    assert (len(columns["form"]), words) == {"dev": (2001, 25147), "test": (2077, 25094)}[split]
    with (TREEBANK / f"{split}.jsonl").open(encoding="utf-8") as file:
        again = list(map(json.loads, file))
    assert columns["form"] == [sentence["tokens"] for sentence in again]
    assert columns["upos"] == [sentence["upos"] for sentence in again]
    assert len({tag for tags in columns["upos"] for tag in tags}) == 17

"""Claims of the sources of text: layout, origins, and one clear sentence for whatever is missing."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from neobert.data import synthetic
from neobert.data.catalog import CORPORA, REFINEDWEB, TASK_SPLITS
from neobert.data.manifest import Entry, Manifest, write_manifest
from neobert.data.sources import UNRESOLVED, DirectorySource, HubSource, NoCorpus, SyntheticSource, open_source
from neobert.data.tokenizers import train_wordpiece
from neobert.errors import DamagedFile, MissingData
from neobert.files import sha256_of
from tests.support.small_corpora import texts, write_table


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A complete folder with one corpus, one tokenizer and two tasks, one of them without train split."""
    root = tmp_path / "mydata"
    write_table(root / "corpora" / "web" / "b.parquet", {"text": ["third", None, "fourth"], "id": [1, 2, 3]})
    write_table(root / "corpora" / "web" / "a.parquet", {"text": ["first", "second"]})
    pairs = {"sentence": ["good film", "bad film"], "label": [1, 0]}
    write_table(root / "glue" / "sst2" / "train.parquet", pairs)
    write_table(root / "glue" / "sst2" / "validation.parquet", pairs)
    write_table(root / "glue" / "mnli" / "validation_matched.parquet", {"label": [0]})
    train_wordpiece(texts(50), 100).save(root / "tokenizers" / "bert-base-uncased")
    return root


def test_a_corpus_origin_is_its_content_not_its_place(folder: Path, tmp_path: Path) -> None:
    before = DirectorySource(folder).corpus_origin("web")
    assert before.startswith("directory:") and len(before) == len("directory:") + 12
    moved = folder.rename(tmp_path / "elsewhere")
    (moved / "corpora" / "web" / "notes.md").write_text("no part of the corpus")
    assert DirectorySource(moved).corpus_origin("web") == before
    write_table(moved / "corpora" / "web" / "b.parquet", {"text": ["another third", None, "fourth"]})
    assert DirectorySource(moved).corpus_origin("web") != before


def test_prefetched_files_keep_the_identity_of_the_hub(folder: Path) -> None:
    path = folder / "corpora" / "web" / "a.parquet"
    (folder / "corpora" / "web" / "b.parquet").unlink()
    entry = {
        "repository": REFINEDWEB.name,
        "revision": "c0ffee",
        "sha256": sha256_of(path),
        "bytes": path.stat().st_size,
    }
    (folder / "manifest.json").write_text(json.dumps({"files": {"corpora/web/a.parquet": entry}}))
    source = DirectorySource(folder)
    assert source.corpus_origin("web") == HubSource({REFINEDWEB.name: "c0ffee"}).corpus_origin("web")
    assert source.task_origin("sst2").startswith("directory:")
    whole = path.read_bytes()
    path.write_bytes(bytes(reversed(whole)))
    with pytest.raises(MissingData, match=r"a\.parquet does not match its checksum: run ablations/prefetch\.py again"):
        DirectorySource(folder).corpus_origin("web")
    path.write_bytes(whole + b"more")
    with pytest.raises(DamagedFile, match=r"a\.parquet"):
        DirectorySource(folder).corpus_origin("web")


def test_what_prefetch_has_not_completed_is_missing_and_not_a_part_or_a_corpus_less(folder: Path) -> None:
    def listed(*names: str) -> dict[str, Entry]:
        size, sha256 = (folder / names[0]).stat().st_size, sha256_of(folder / names[0])
        return {name: Entry("someone/data", "c0ffee", size, sha256) for name in names}

    shutil.copytree(folder / "corpora" / "web", folder / "pairs" / "FEVER" / "corpus")
    corpus = listed("corpora/web/a.parquet", "corpora/web/z.parquet")
    pairs = listed("pairs/FEVER/corpus/a.parquet", "pairs/FEVER/corpus/z.parquet")
    with pytest.raises(NoCorpus):
        DirectorySource(folder).corpus_origin("wikibook")
    write_manifest(folder, Manifest({**corpus, **pairs}))
    for find in (lambda source: source.corpus_origin("web"), lambda source: source.pair_origin("FEVER")):
        with pytest.raises(MissingData, match=r"lacks 1 of the 2 files .* \(first: .*z\.parquet\)") as caught:
            find(DirectorySource(folder))
        assert not isinstance(caught.value, NoCorpus), "one that is incomplete is an error, not a corpus less"


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ({"files": {"corpora/web/a": {"repository": "a/b", "revision": "c", "bytes": -3}}}, r"a\.bytes: .* equal to 0"),
        ([], ""),
        ({"files": {"a": []}}, ""),
    ],
)
def test_a_manifest_with_wrong_values_is_refused_in_one_sentence(folder: Path, content: object, said: str) -> None:
    (folder / "manifest.json").write_text(json.dumps(content))
    with pytest.raises(DamagedFile, match=rf"^{folder}/manifest\.json .*{said}"):
        DirectorySource(folder).corpus_origin("web")


def test_pairs_that_are_not_as_declared_are_one_sentence(folder: Path) -> None:
    paragraphs = [[{"title": "a field that nobody reads"}]]
    path = folder / "pairs" / "CONCURRENTQA" / "a.parquet"
    write_table(path, {"question": ["q"], "pos_paras": paragraphs, "neg_paras": paragraphs})
    with pytest.raises(ValueError, match=r"a\.parquet, row 0 is not as pairs\.toml declares it \(KeyError\('text'\)\)"):
        list(DirectorySource(folder).pairs("CONCURRENTQA"))


def test_tasks_tell_which_can_be_fine_tuned_and_why_not(folder: Path) -> None:
    tasks = DirectorySource(folder).tasks()
    assert tuple(tasks) == tuple(TASK_SPLITS) and len(tasks) == 8
    assert tasks["sst2"] is None
    assert tasks["mnli"] is not None and "mnli has no train, validation_mismatched split" in tasks["mnli"]
    assert tasks["cola"] is not None


def test_a_folder_without_tokenizers_has_them_trained_on_its_text(folder: Path, tmp_path: Path) -> None:
    """The same in every process, named by the text, and a character that stands once takes no room."""
    shutil.rmtree(folder / "tokenizers")
    signs = " ".join(chr(0x4E00 + number) for number in range(50))
    write_table(folder / "corpora" / "wikibook" / "a.parquet", {"text": [*texts(200), signs, signs, "one snowman ☃"]})
    source = DirectorySource(folder)
    assert source.trains_tokenizers
    origins = {source.tokenizer_origin(*each) for each in (("bpe", 400), ("bpe", 401), ("wordpiece", 400))}
    assert len(origins) == 3
    for name in ("wordpiece", "bpe"):
        first, again = (source.tokenizer(name, 400, tmp_path / cache) for cache in ("first", "again"))
        assert first.tokenizer.to_str() == again.tokenizer.to_str()
        assert "☃" not in first.tokenizer.get_vocab()
        assert 300 < first.vocabulary_size <= 400
    write_table(folder / "corpora" / "web" / "c.parquet", {"text": ["more"]})
    assert DirectorySource(folder).tokenizer_origin("bpe", 400) not in origins


def test_missing_things_are_one_clear_sentence(folder: Path) -> None:
    with pytest.raises(MissingData, match="did you mean 'synthetic'"):
        open_source("syntetic", synthetic_documents=1)
    source = open_source(str(folder), synthetic_documents=1)
    assert source.label == "mydata"
    with pytest.raises(MissingData, match="no corpus wikibook"):
        source.corpus_origin("wikibook")
    with pytest.raises(MissingData, match="no tokenizer bpe"):
        source.tokenizer("bpe", 300, folder)
    with pytest.raises(MissingData, match=r"mnli has no train split.*validation_matched"):
        source.task_examples("mnli", "train")
    with pytest.raises(MissingData, match="cola has no"):
        source.task_origin("cola")
    with pytest.raises(ValueError, match="did you mean 'wikibook'"):
        source.corpus_origin("wikibooks")
    with pytest.raises(ValueError, match="split of sst2 'validatoin': did you mean 'validation'"):
        source.task_examples("sst2", "validatoin")
    with pytest.raises(ValueError, match="at least 100"):
        source.tokenizer("wordpiece", 99, folder)
    assert source.tokenizer("wordpiece", 100, folder).vocabulary_size == 100


def test_synthetic_tokenizers_are_equally_large_trained_once_and_do_not_depend_on_the_documents(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def documents(corpus: str, *, documents: int) -> Iterator[str]:
        return iter(texts(documents, seed=list(CORPORA).index(corpus)))

    monkeypatch.setattr(synthetic, "corpus_documents", documents)
    monkeypatch.setattr(SyntheticSource, "tokenizer_documents", 500)
    small, large = (open_source("synthetic", synthetic_documents=number) for number in (30, 60))
    sizes = {small.tokenizer(name, 330, tmp_path).vocabulary_size for name in ("wordpiece", "bpe")}
    assert sizes == {330}
    assert small.tokenizer_origin("bpe", 330) == large.tokenizer_origin("bpe", 330)
    assert small.corpus_origin("web") != large.corpus_origin("web")
    monkeypatch.setattr(synthetic, "corpus_documents", None)
    assert large.tokenizer("bpe", 330, tmp_path).vocabulary_size == 330


def test_the_hub_invents_no_revision() -> None:
    source = open_source("hub", synthetic_documents=1)
    assert source.label == "hub" and not source.trains_tokenizers
    assert source.corpus_origin("web") == f"hub:{REFINEDWEB.name}@{UNRESOLVED}"
    assert set(source.tasks().values()) == {None}
    for read in (
        lambda: source.documents("web"),
        lambda: source.tokenizer("bpe", 32_064, Path()),
        lambda: source.task_examples("rte", "train"),
    ):
        with pytest.raises(MissingData, match=r"is not here, and runs do not read the hub: .*ablations/prefetch\.py"):
            read()

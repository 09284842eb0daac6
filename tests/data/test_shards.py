"""Claims of the tokenised corpus: nothing lost, resumable, damage found, and views that copy nothing."""

import os
import shutil
import tracemalloc
from collections.abc import Iterator
from dataclasses import replace
from itertools import chain
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from neobert import files as verification
from neobert.data import shards
from neobert.data.shards import (
    HELDOUT_LEAST_TEXTS,
    HELDOUT_SHARE,
    MANIFEST,
    TokenizedCorpus,
    all_documents,
    open_shards,
    prepare,
    split_corpus,
    text_hash,
)
from neobert.data.streams import StepIterator
from neobert.data.tokenizers import TextTokenizer, train_wordpiece
from neobert.errors import DamagedFile, MissingData
from neobert.executors.preparation import prepare_once
from neobert.files import VERIFIED
from neobert.processes import StopRequest
from neobert.runs.claims import Claim, ClaimLost
from tests.support.small_corpora import corpus_of, stage, texts, with_ids

TEXTS = texts(300)
ORIGINS = {"corpus": "test:texts", "tokenizer": "test:wordpiece"}


@pytest.fixture(scope="module")
def tokenizer() -> TextTokenizer:
    return train_wordpiece(TEXTS, 330)


@pytest.fixture(autouse=True)
def small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shards, "BATCH_TEXTS", 16)


def made(folder: Path, tokenizer: TextTokenizer, shard_tokens: int = 1000) -> TokenizedCorpus:
    return prepare(TEXTS, tokenizer, folder, origins=ORIGINS, shard_tokens=shard_tokens)


def kill_after(read: list[str], folder: Path, tokenizer: TextTokenizer, origins: dict[str, str] = ORIGINS) -> None:
    """A preparation that is killed when these texts were read."""

    def killed() -> Iterator[str]:
        yield from read
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        prepare(killed(), tokenizer, folder, origins=origins, shard_tokens=1000)


def contents(folder: Path) -> dict[str, bytes]:
    """All files but what was remembered of this copy."""
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.name != VERIFIED}


def read_all(corpus: TokenizedCorpus) -> list[int]:
    token_ids = np.empty(corpus.tokens, dtype=np.int64)
    corpus.copy(corpus.starts, corpus.lengths, token_ids, corpus.starts)
    return token_ids.tolist()


def test_a_corpus_holds_every_token_of_every_text_in_order(tmp_path: Path, tokenizer: TextTokenizer) -> None:
    corpus = made(tmp_path / "c", tokenizer)
    encoded = tokenizer.encode(TEXTS)
    assert len(corpus.shards) > 2
    assert corpus.lengths.tolist() == [len(ids) for ids in encoded]
    assert read_all(corpus) == list(chain.from_iterable(encoded))
    assert corpus.text_hashes.tolist() == [text_hash(text) for text in TEXTS]
    assert corpus.ids == tokenizer.ids
    assert corpus.manifest["origins"] == ORIGINS
    assert sum(path.stat().st_size for path in (tmp_path / "c").glob("tokens-*.bin")) == 2 * corpus.tokens


def test_blank_texts_are_dropped_and_counted(tmp_path: Path, tokenizer: TextTokenizer) -> None:
    mixed = ["", "the cat", "   ", "\n", "a dög", ""]
    corpus = prepare(mixed, tokenizer, tmp_path / "c", origins=ORIGINS)
    assert corpus.documents == 2 and corpus.manifest["blank_texts_dropped"] == 4
    assert corpus.text_hashes.tolist() == [text_hash("the cat"), text_hash("a dög")]
    assert corpus.text_bytes.tolist() == [7, 6]


def test_a_text_that_one_tokenizer_leaves_nothing_of_shifts_no_other(
    tmp_path: Path, tokenizer: TextTokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A step holds the same documents under the same masks as with a tokenizer that keeps such a text."""
    mixed = [*TEXTS[:20], "\u200b", *TEXTS[20:]]
    empty = prepare(mixed, tokenizer, tmp_path / "empty", origins=ORIGINS)
    original = TextTokenizer.encode
    monkeypatch.setattr(TextTokenizer, "encode", lambda self, batch: [ids or [7] for ids in original(self, batch)])
    kept = prepare(mixed, tokenizer, tmp_path / "kept", origins=ORIGINS)
    assert (empty.lengths[20], kept.lengths[20]) == (0, 1)
    orders = [mask_keys(corpus) for corpus in (empty, kept)]
    assert orders[0] == orders[1] and {document for document, _ in orders[0]} == set(range(len(mixed)))
    assert read_all(empty) == [token for ids in original(tokenizer, mixed) for token in ids]


def mask_keys(corpus: TokenizedCorpus) -> list[tuple[int, int]]:
    """(document, mask key) of each document of an epoch, sorted, step by step."""
    found = []
    for rows in StepIterator(all_documents(corpus), stage(64, 43, steps=7), "padded", seed=0):
        found += sorted(zip(rows.spans.documents.tolist(), rows.spans.keys.tolist(), strict=True))
    return found


@pytest.mark.parametrize("killed_after", [0, 40, 170, 299])
def test_a_killed_preparation_goes_on_and_gives_the_same_bytes(
    tmp_path: Path, tokenizer: TextTokenizer, killed_after: int
) -> None:
    kill_after(TEXTS[:killed_after], tmp_path / "killed", tokenizer)
    assert not (tmp_path / "killed").exists()
    made(tmp_path / "killed", tokenizer)
    made(tmp_path / "whole", tokenizer)
    assert contents(tmp_path / "killed") == contents(tmp_path / "whole")


def test_finished_shards_are_not_tokenised_again(
    tmp_path: Path, tokenizer: TextTokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    kill_after(TEXTS[:200], tmp_path / "c", tokenizer)
    encoded: list[str] = []
    original = TextTokenizer.encode
    monkeypatch.setattr(TextTokenizer, "encode", lambda self, batch: encoded.extend(batch) or original(self, batch))
    corpus = made(tmp_path / "c", tokenizer)
    assert sorted(encoded) == sorted(TEXTS[len(TEXTS) - len(encoded) :])
    assert len(encoded) < 200 and corpus.documents == len(TEXTS)


@pytest.mark.parametrize("name", ["tokens-00001.bin", "header.json", "shard-00001.json"])
def test_a_torn_file_of_a_killed_run_is_made_again(tmp_path: Path, tokenizer: TextTokenizer, name: str) -> None:
    kill_after(TEXTS[:200], tmp_path / "c", tokenizer)
    torn = tmp_path / "c.partial" / name
    torn.write_bytes(torn.read_bytes()[:-6])
    (tmp_path / "c.partial" / "tokens-00002.bin.tmp-0123456789ab").write_bytes(b"left by kill -9")
    made(tmp_path / "c", tokenizer)
    made(tmp_path / "whole", tokenizer)
    assert contents(tmp_path / "c") == contents(tmp_path / "whole")


def test_a_preparation_killed_while_it_publishes_tokenises_nothing_again(
    tmp_path: Path, tokenizer: TextTokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr("neobert.data.shards.publish_folder", killed)
        with pytest.raises(KeyboardInterrupt):
            made(tmp_path / "c", tokenizer)
    monkeypatch.setattr(TextTokenizer, "encode", None)
    assert made(tmp_path / "c", tokenizer).documents == len(TEXTS)


def test_a_folder_without_a_manifest_is_refused_before_anything_is_read(
    tmp_path: Path, tokenizer: TextTokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "c").mkdir()
    monkeypatch.setattr(TextTokenizer, "encode", None)
    with pytest.raises(DamagedFile, match=r"c exists without manifest\.json: remove it"):
        made(tmp_path / "c", tokenizer)


def test_a_process_that_was_taken_over_touches_no_shard(tmp_path: Path, tokenizer: TextTokenizer) -> None:
    """Paused in its second shard while another process finishes."""
    folder, paused = tmp_path / "c", tmp_path / "paused"

    def taken_over() -> None:
        if (tmp_path / "whole").exists():
            raise ClaimLost

    def pausing() -> Iterator[str]:
        yield from TEXTS[:150]
        made(tmp_path / "whole", tokenizer)
        shutil.copytree(folder.with_name("c.partial"), paused)
        yield from TEXTS[150:]

    with pytest.raises(ClaimLost):
        prepare(pausing(), tokenizer, folder, origins=ORIGINS, shard_tokens=1000, check=taken_over)
    records = [{path.name for path in place.glob("*.json")} for place in (paused, folder.with_name("c.partial"))]
    assert records[0] == records[1] and len(records[0]) > 1 and not folder.exists()


def test_who_lost_the_claim_takes_the_data_of_the_new_owner(tmp_path: Path) -> None:
    published: list[str] = []

    def opened() -> str:
        if not published:
            raise MissingData
        return published[0]

    def make(_: DamagedFile | None, claim: Claim) -> None:
        (claim.folder / str(claim.number + 1)).write_text("{}")
        published.append("the new owner's")
        claim.check()
        published.insert(0, "those of a process that was paused")

    assert prepare_once(tmp_path / "claims", "data", StopRequest(), opened, make) == "the new owner's"


def test_leftovers_of_another_corpus_are_not_mixed_in(tmp_path: Path, tokenizer: TextTokenizer) -> None:
    kill_after(texts(200, seed=5), tmp_path / "c", tokenizer, {**ORIGINS, "corpus": "other"})
    assert read_all(made(tmp_path / "c", tokenizer)) == list(chain.from_iterable(tokenizer.encode(TEXTS)))


def hashed_files(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of files that are read in full from now on, as they come."""
    names: list[str] = []
    original = verification.sha256_of

    def noting(path: Path) -> str:
        names.append(path.name)
        return original(path)

    monkeypatch.setattr(verification, "sha256_of", noting)
    return names


def test_what_was_verified_is_not_read_again_until_it_is_another_file(
    tmp_path: Path, tokenizer: TextTokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    hashed = hashed_files(monkeypatch)
    made(tmp_path / "c", tokenizer)
    assert sorted(set(hashed)) == sorted(set(contents(tmp_path / "c")) - {MANIFEST})
    hashed.clear()
    open_shards(tmp_path / "c")
    assert hashed == []
    (tmp_path / "c" / "tokens-00000.bin").touch()
    open_shards(tmp_path / "c")
    assert hashed == ["tokens-00000.bin"]
    shutil.copytree(tmp_path / "c", tmp_path / "copy")
    hashed.clear()
    open_shards(tmp_path / "copy")
    assert len(hashed) == len(contents(tmp_path / "copy")) - 1


def test_a_changed_byte_under_an_unchanged_size_and_date_is_found(tmp_path: Path, tokenizer: TextTokenizer) -> None:
    made(tmp_path / "c", tokenizer)
    path = tmp_path / "c" / "tokens-00001.bin"
    status, content = path.stat(), bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert path.stat().st_mtime_ns == status.st_mtime_ns and path.stat().st_size == status.st_size
    with pytest.raises(DamagedFile, match=path.name):
        open_shards(tmp_path / "c")


def test_memory_does_not_grow_with_the_corpus(
    tmp_path: Path, tokenizer: TextTokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Texts or tokens that were held would be seen; the index of a document is small beside its text."""
    monkeypatch.setattr(shards, "BATCH_TEXTS", 4)
    long = " ".join(TEXTS[:50])

    def peak(count: int) -> int:
        tracemalloc.start()
        try:
            prepare(
                (f"{long} {number}" for number in range(count)),
                tokenizer,
                tmp_path / str(count),
                origins=ORIGINS,
                shard_tokens=20_000,
            )
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()

    peak(50)  # what is made once
    assert 300 * len(long) > 2 * 2**19 and peak(400) - peak(100) < 2**19


def test_a_shard_of_nothing_but_empty_texts_is_opened(tmp_path: Path, tokenizer: TextTokenizer) -> None:
    corpus = prepare(["the cat"] * 16 + [""] * 40, tokenizer, tmp_path / "c", origins=ORIGINS, shard_tokens=1)
    assert corpus.documents == 16 and len(corpus.shards) == 2 and len(corpus.shards[1]) == 0


def test_an_unfinished_folder_is_missing_data(tmp_path: Path, tokenizer: TextTokenizer) -> None:
    made(tmp_path / "c", tokenizer)
    (tmp_path / "c" / MANIFEST).unlink()
    with pytest.raises(MissingData, match="no tokenised corpus"):
        open_shards(tmp_path / "c")


def test_few_tokens_with_an_id_beyond_two_bytes_are_refused(tmp_path: Path, tokenizer: TextTokenizer) -> None:
    with pytest.raises(ValueError, match="ids up to 70000 but shards"):
        made(tmp_path / "c", with_ids(tokenizer, lambda number: 70_000 if number == 300 else number))


@pytest.mark.parametrize("nothing", [[], ["", "  "]])
def test_a_corpus_without_text_is_refused(tmp_path: Path, tokenizer: TextTokenizer, nothing: list[str]) -> None:
    with pytest.raises(ValueError, match="test:texts holds no text"):
        prepare(nothing, tokenizer, tmp_path / "c", origins=ORIGINS)
    assert not (tmp_path / "c").exists()


def heldout_hashes(corpus: TokenizedCorpus) -> tuple[set[int], set[int]]:
    training, heldout = split_corpus(corpus)
    hashes = corpus.text_hashes
    return set(hashes[training.numbers].tolist()), set(hashes[heldout.numbers].tolist())


@given(st.lists(st.integers(0, 2**64 - 1), min_size=2, max_size=300))
def test_equal_texts_are_on_one_side_and_nothing_is_lost(hashes: list[int]) -> None:
    if len(set(hashes)) < 2:
        hashes = [*hashes, hashes[0] ^ 1]
    corpus = replace(corpus_of([3] * len(hashes)), text_hashes=np.array(hashes, dtype=np.uint64))
    training, heldout = heldout_hashes(corpus)
    assert training and heldout and not training & heldout
    assert training | heldout == set(hashes)


def test_the_held_out_share_is_fixed() -> None:
    generator = np.random.default_rng(0)
    hashes = generator.integers(0, 2**64, size=50_000, dtype=np.uint64)
    corpus = replace(corpus_of([1] * len(hashes)), text_hashes=hashes)
    _, heldout = split_corpus(corpus)
    assert len(heldout) == int((hashes <= int(HELDOUT_SHARE * 2**64)).sum())
    assert len(split_corpus(corpus_of([3] * 1000))[1]) == HELDOUT_LEAST_TEXTS


def test_the_held_out_texts_do_not_depend_on_the_tokenizer(tmp_path: Path, tokenizer: TextTokenizer) -> None:
    other = train_wordpiece(TEXTS, 80)
    sides = [heldout_hashes(made(tmp_path / str(t.vocabulary_size), t)) for t in (tokenizer, other)]
    assert sides[0] == sides[1]


def test_a_corpus_of_one_text_cannot_be_split() -> None:
    corpus = replace(corpus_of([3, 3]), text_hashes=np.array([7, 7], dtype=np.uint64))
    with pytest.raises(ValueError, match="too few to hold one out"):
        split_corpus(corpus)


def test_views_count_the_specials() -> None:
    documents = all_documents(corpus_of([1, 6, 7, 30]))
    assert documents.truncated(8).framed_lengths.tolist() == [3, 8, 8, 8]
    assert documents.at_least(8).numbers.tolist() == [1, 2, 3]
    assert documents.at_least(9).numbers.tolist() == [2, 3]
    assert documents.at_least(9).lengths.tolist() == [7, 30]
    with pytest.raises(ValueError, match="no room"):
        documents.truncated(2)

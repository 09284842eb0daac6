"""Encoders of any origin give the vectors that transformers and sentence-transformers give on the same weights."""

from collections.abc import Callable
from pathlib import Path

import external_models as world
import numpy as np
import pytest
import torch
from external_models import CONTEXT
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file
from tiny_contrastive import tiny_contrastive, write_encoder, write_tiny_contrastive
from transformers import AutoModel, AutoTokenizer, PreTrainedModel

from neobert.embeddings import encoders
from neobert.embeddings.encoders import (
    PaddedEncoder,
    TextCounts,
    TextEncoder,
    load_encoder,
    padded_batches,
)
from neobert.errors import DamagedFile, MissingData, RunFailed
from neobert.export.checkpoint import open_checkpoint
from neobert.external import adopt
from neobert.hub.external import load_external
from neobert.model.attention import whole_rows_plan
from neobert.model.heads import pool_mean
from neobert.runs.layout import Layout

CPU = torch.device("cpu")
FAMILIES = {"bert": world.bert, "modernbert": world.modernbert, "roberta": world.roberta, "electra": world.electra}
WORDS = ("the", "cat", "a", "dog", "sleeps", "and", "bird", "stone", ".")
ASKED = ["the cat sleeps", "", "a dog and a cat " * 20, "x", "Ünïcode – 猫", "the cat sleeps"]

texts = st.lists(st.lists(st.sampled_from(WORDS), max_size=70).map(" ".join), max_size=20)


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Every family with its tokenizer; BERT reads token types."""
    root = tmp_path_factory.mktemp("models")
    return {
        name: world.save(world.seeded(build), root / name, token_types=name == "bert")
        for name, build in FAMILIES.items()
    }


def opened(folder: Path, **options: object) -> TextEncoder:
    encoder, tokenizer = load_external(folder, folder.name)
    return TextEncoder(
        PaddedEncoder(encoder, CONTEXT), tokenizer, CONTEXT, **{"precision": "fp32", "device": CPU, **options}
    )


def reference(folder: Path) -> Callable[..., np.ndarray]:
    """What transformers gives for one text, or one behind another of the same token type, alone: the mean over its
    tokens."""
    model: PreTrainedModel = AutoModel.from_pretrained(folder).eval()
    tokenizer = AutoTokenizer.from_pretrained(folder)

    @torch.no_grad()
    def alone(*text: str) -> np.ndarray:
        columns = ([part] for part in text)  # a single empty text would count as none
        tokens = tokenizer(*columns, truncation=True, max_length=CONTEXT, return_tensors="pt")
        if len(text) > 1 and "token_type_ids" in tokens:
            tokens["token_type_ids"].zero_()
        return model(**tokens).last_hidden_state[0].mean(0).numpy()

    return alone


@pytest.mark.parametrize("family", FAMILIES)
def test_vectors_are_those_of_transformers_whatever_else_is_encoded(family: str, folders: dict[str, Path]) -> None:
    alone, by = reference(folders[family]), opened(folders[family])

    @settings(max_examples=8, deadline=None)
    @given(given_texts=texts, batch_tokens=st.sampled_from([1, 60, 300, 10_000]), chunk=st.sampled_from([1, 7, 4096]))
    def vectors_stand_alone(given_texts: list[str], batch_tokens: int, chunk: int) -> None:
        by.batch_tokens = batch_tokens
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(encoders, "CHUNK_TEXTS", chunk)
            plain, instructed = by.encode(given_texts, prompt="the "), by.encode(given_texts, instruction="a bird")
        assert plain.shape == instructed.shape == (len(given_texts), 16) and plain.dtype == np.float32
        for text, vector, behind in zip(given_texts, plain, instructed, strict=True):
            np.testing.assert_allclose(vector, alone(f"the {text}"), atol=1e-5, rtol=0)
            np.testing.assert_allclose(behind, alone("a bird", text), atol=1e-5, rtol=0)

    vectors_stand_alone()


@pytest.mark.parametrize("family", ["bert", "roberta"])
def test_vectors_are_those_of_sentence_transformers(family: str, folders: dict[str, Path]) -> None:
    library = pytest.importorskip("sentence_transformers", reason="sentence-transformers is not installed")
    from sentence_transformers.sentence_transformer.modules import Pooling, Transformer

    transformer = Transformer(str(folders[family]), max_seq_length=CONTEXT)
    other = library.SentenceTransformer(modules=[transformer, Pooling(16, "mean")], device="cpu")
    model = adopt(Layout(folders[family].parent / "runs"), str(folders[family]))
    by = world.text_encoder(model, folders[family].parent / "runs")
    np.testing.assert_allclose(by.encode(ASKED), other.encode(ASKED), atol=1e-5, rtol=0)
    np.testing.assert_allclose(
        by.encode(ASKED, prompt="query: ", normalize=True),
        other.encode(ASKED, prompt="query: ", normalize_embeddings=True),
        atol=1e-5,
        rtol=0,
    )


def test_what_was_encoded_is_counted_as_for_other_encoders(folders: dict[str, Path]) -> None:
    by = opened(folders["roberta"])
    by.encode(["", " \n", "the cat", ASKED[2], "the cat"])
    ids = by.tokenizer.tokenizer("the cat")["input_ids"]
    assert by.counts == TextCounts(texts=5, repeated=1, empty=2, cut=1, tokens=2 + 2 + len(ids) + CONTEXT)
    assert by.encode([]).shape == (0, 16)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_text_without_any_token_has_the_vector_zero(family: str, folders: dict[str, Path]) -> None:
    """Where a tokenizer adds no special tokens; the other texts of its batch have theirs."""
    by = opened(folders[family])
    by.tokenizer.tokenizer.backend_tokenizer.post_processor = None
    cat = by.encode(["cat"])
    found = by.encode(["", "cat", " "])
    assert not found[[0, 2]].any() and by.counts.empty == 2
    np.testing.assert_allclose(found[1], cat[0], atol=1e-5, rtol=0)
    assert not by.encode(["", " "], normalize=True).any()


def test_texts_are_cut_to_what_is_asked_for_and_to_what_the_model_reads(folders: dict[str, Path]) -> None:
    model = adopt(Layout(folders["bert"].parent / "runs"), str(folders["bert"]))
    assert [
        world.text_encoder(model, folders["bert"].parent / "runs", max_tokens=most).context
        for most in (None, 10, 10_000)
    ] == [CONTEXT, 10, CONTEXT]


@given(st.lists(st.integers(0, 50), max_size=30), st.integers(1, 120))
def test_padded_batches_hold_each_text_once_within_their_slots(lengths: list[int], most: int) -> None:
    sizes = np.array(sorted(lengths, reverse=True), np.int64)
    parts = [sizes[part].tolist() for part in padded_batches(sizes, most)]
    assert [size for part in parts for size in part] == sizes.tolist()
    assert all(len(part) * part[0] <= most or len(part) == 1 for part in parts)


def test_broken_external_weights_end_in_an_error_and_not_in_nan(folders: dict[str, Path]) -> None:
    by = opened(folders["bert"])
    with torch.no_grad():
        by.model.model.embedding.weight[by.tokenizer.tokenizer("cat")["input_ids"][1]] = float("nan")
    with pytest.raises(RunFailed, match="text 1 is not finite"):
        by.encode(["dog", "cat"])


def test_a_changed_model_is_not_opened_as_the_one_that_it_was(tmp_path: Path) -> None:
    folder = world.save(world.seeded(world.bert), tmp_path / "model")
    model = adopt(Layout(tmp_path / "runs"), str(folder))
    tensors = load_file(folder / "model.safetensors")
    save_file({name: tensor + 1 for name, tensor in tensors.items()}, folder / "model.safetensors", {"format": "pt"})
    with pytest.raises(DamagedFile, match="are not those that"):
        world.text_encoder(model, tmp_path / "runs")


def test_a_pretrained_run_is_opened_as_it_ended(tmp_path: Path) -> None:
    run = write_encoder(tmp_path)
    checkpoint = open_checkpoint(tmp_path / "pretraining" / run.id, run.recipe.stages[-1].steps)
    by = load_encoder(Layout(tmp_path), run.id, CPU)
    assert by.context == run.recipe.longest_context == 32
    assert load_encoder(Layout(tmp_path), run.id, CPU, max_tokens=9).context == 9
    tokenizer = checkpoint.tokenizer
    row = torch.tensor([tokenizer.frame(tokenizer.encode(["the cat sleeps"])[0], max_tokens=32)])
    with torch.no_grad():
        expected = pool_mean(checkpoint.network.model, row, whole_rows_plan(row))
    np.testing.assert_allclose(by.encode(["the cat sleeps"]), expected, atol=1e-5, rtol=0)


def test_what_is_not_finished_is_not_opened(tmp_path: Path) -> None:
    encoder = write_encoder(tmp_path)
    run = tiny_contrastive(encoder.id)
    write_tiny_contrastive(tmp_path, run)
    with pytest.raises(MissingData, match=f"contrastive fine-tuning {run.id} is not finished"):
        load_encoder(Layout(tmp_path), run.id, CPU)
    (tmp_path / "pretraining" / encoder.id / "done.json").unlink()
    with pytest.raises(MissingData, match=f"pre-training {encoder.id} is not finished"):
        load_encoder(Layout(tmp_path), encoder.id, CPU)

"""Encoders, own and external, give each text the vector that it has alone: that of transformers and of
sentence-transformers on the same weights."""

from collections.abc import Callable
from itertools import chain, pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import AutoModel, AutoTokenizer, PreTrainedModel

from neobert.data.sources import SyntheticSource
from neobert.data.tokenizers import TextTokenizer
from neobert.embeddings import encoders
from neobert.embeddings.contrastive import StepCollator
from neobert.embeddings.encoders import PackedEncoder, PaddedEncoder, TextCounts, TextEncoder, packed_batches
from neobert.errors import MissingData, RunFailed
from neobert.executors.encoders import load_encoder
from neobert.executors.external import resolve_model
from neobert.export.checkpoint import open_checkpoint
from neobert.hub.external import load_external
from neobert.model.attention import whole_rows_plan
from neobert.model.build import build_encoder, initialize
from neobert.model.positions import POSITIONS
from neobert.runs.layout import Layout
from neobert.training.distributed import Process
from tests.embeddings.tiny_contrastive import tiny_contrastive, write_encoder, write_tiny_contrastive
from tests.support import external_models as world
from tests.support.tiny_runs import tiny_model
from tests.training.test_adding_parts import ALiBiPositions

CPU = torch.device("cpu")
CONTEXT = 24
WORDS = ("the", "cat", "a", "dog", "sleeps", "and", "bird", "stone", ".")
BF16_BOUND = 0.03
"""Largest difference of a bf16 vector from the fp32 one, as a share of its length (eight bits of mantissa)."""

FP16_BOUND = 0.005
"""The same of fp16 (eleven bits)."""

VARIED = [" ".join(WORDS[: n % 9 + 1] * (n % 4 + 1)) for n in range(40)]
texts = st.lists(st.lists(st.sampled_from(WORDS), max_size=70).map(" ".join), max_size=20)


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory) -> TextTokenizer:
    return SyntheticSource(10).tokenizer("wordpiece", 512, tmp_path_factory.mktemp("tokenizers"))


FORMS = {
    "rotary": {},
    "learned": {"positions": "learned"},
    "score bias": {"positions": "alibi"},
}


def encoder(tokenizer: TextTokenizer, form: str = "rotary", **options) -> TextEncoder:
    model = tiny_model(width=32).model_copy(update=FORMS[form])
    built = build_encoder(model, CONTEXT)
    initialize(built, model.initialization, 0)
    return TextEncoder(PackedEncoder(built), tokenizer, CONTEXT, **{"precision": "fp32", "device": CPU, **options})


@torch.no_grad()
def alone(by: TextEncoder, text: str) -> np.ndarray:
    """The mean state of one text in a row of its own."""
    ids = by.tokenizer.frame(by.tokenizer.encode([text])[0], max_tokens=by.context)
    row = torch.tensor([ids])
    return by.model.model(row, whole_rows_plan(row))[0].mean(dim=0).float().numpy()


@pytest.mark.parametrize("form", FORMS)
@settings(max_examples=8)
@given(given_texts=texts, batch_tokens=st.sampled_from([1, 30, 100, 10_000]), chunk=st.sampled_from([1, 7, 4096]))
def test_a_vector_does_not_depend_on_the_other_texts(tokenizer, form, given_texts, batch_tokens, chunk):
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(POSITIONS, "alibi", ALiBiPositions)
        by = encoder(tokenizer, form)
        by.batch_tokens = batch_tokens
        patch.setattr(encoders, "CHUNK_TEXTS", chunk)
        vectors = by.encode(given_texts)
    assert vectors.shape == (len(given_texts), 32) and vectors.dtype == np.float32
    for text, vector in zip(given_texts, vectors, strict=True):
        np.testing.assert_allclose(vector, alone(by, text), atol=1e-5, rtol=0)


@pytest.mark.parametrize("form", FORMS)
def test_only_attention_with_a_bias_needs_small_batches(
    tokenizer: TextTokenizer, form: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A bias between all tokens of a batch takes memory as their square, whatever the size that was asked for."""
    monkeypatch.setitem(POSITIONS, "alibi", ALiBiPositions)
    monkeypatch.setattr(encoders, "BIASED_TOKENS", 40)
    by, sizes = encoder(tokenizer, form), list[int]()
    by.batch_tokens = 10_000
    by.model.register_forward_pre_hook(lambda _, given: sizes.append(given[0].token_ids.numel()))
    by.encode(VARIED)
    is_biased = form == "score bias"
    assert len(sizes) > 1 and max(sizes) <= 40 if is_biased else len(sizes) == 1
    split = StepCollator(by.model, 10_000, "fp32", Process(0, 1), CPU).split(np.full(60, 5))
    assert len(split) == (8 if is_biased else 1)


@given(st.lists(st.integers(1, 50), max_size=30), st.integers(1, 120))
def test_batches_hold_each_text_once_and_are_full(lengths, most_tokens):
    sizes = np.array(lengths, np.int64)
    parts = [sizes[part].tolist() for part in packed_batches(sizes, most_tokens)]
    assert list(chain(*parts)) == lengths
    assert all(sum(part) <= most_tokens or len(part) == 1 for part in parts)
    assert all(sum(part) + after[0] > most_tokens for part, after in pairwise(parts))


def test_empty_and_overlong_texts_have_vectors_and_are_counted(tokenizer) -> None:
    by = encoder(tokenizer)
    long = " ".join(WORDS * 10)
    asked = ["", " \n", "the cat", long, long + " bird", "the cat", long]
    vectors = by.encode(asked)
    assert np.isfinite(vectors).all()
    frame = torch.tensor([[tokenizer.ids.cls, tokenizer.ids.sep]])
    with torch.no_grad():
        np.testing.assert_allclose(vectors[0], by.model.model(frame, whole_rows_plan(frame))[0].mean(0), atol=1e-5)
    np.testing.assert_allclose(vectors[0], vectors[1], atol=1e-5)
    np.testing.assert_allclose(vectors[3], vectors[4], atol=1e-5)
    assert by.counts == TextCounts(texts=7, empty=2, cut=3)
    by.encode([long])
    assert by.counts == TextCounts(texts=8, empty=2, cut=4)


def distance(found: np.ndarray, exact: np.ndarray) -> float:
    """The largest difference of two vectors, as a share of their length."""
    return float((np.linalg.norm(found - exact, axis=1) / np.linalg.norm(exact, axis=1)).max())


@pytest.mark.parametrize(("precision", "bound"), [("bf16", BF16_BOUND), ("fp16", FP16_BOUND)])
def test_half_precision_stays_within_its_bound_of_fp32(tokenizer, precision, bound) -> None:
    rounded = encoder(tokenizer, precision=precision).encode(VARIED)
    assert rounded.dtype == np.float32
    assert 0 < distance(rounded, encoder(tokenizer).encode(VARIED)) < bound


def test_hidden_states_may_grow_beyond_what_fp16_holds(tokenizer) -> None:
    """Weights stay in fp32, and matrices are multiplied in fp16."""
    by = encoder(tokenizer, precision="fp16")
    assert by.model.model.encoder.weight.dtype == torch.float32
    with torch.no_grad():
        by.model.model.encoder.weight.mul_(1e6)
        by.model.model.layer_norm.weight.mul_(1e6)
    large = by.encode(VARIED)
    assert np.isfinite(large).all() and np.abs(large).max() > torch.finfo(torch.float16).max


@pytest.mark.parametrize(("bad", "message"), [(None, "text 1 is None"), (3.5, "text 1 is 3.5")])
def test_what_is_no_text_is_refused_by_its_number(tokenizer, bad, message) -> None:
    with pytest.raises(ValueError, match=message):
        encoder(tokenizer).encode(["fine", bad])


def test_broken_weights_end_in_an_error_and_not_in_nan(tokenizer) -> None:
    by = encoder(tokenizer)
    with torch.no_grad():
        by.model.model.encoder.weight[tokenizer.encode(["cat"])[0][0]] = float("nan")
    with pytest.raises(RunFailed, match="text 1 is not finite"):
        by.encode(["dog", "cat"])


@pytest.mark.gpu
@pytest.mark.parametrize(("precision", "bound"), [("fp32", 1e-3), ("bf16", BF16_BOUND), ("fp16", FP16_BOUND)])
def test_a_gpu_gives_the_vectors_of_the_cpu(tokenizer, precision, bound) -> None:
    found = encoder(tokenizer, precision=precision, device=torch.device("cuda")).encode(VARIED)
    assert distance(found, encoder(tokenizer).encode(VARIED)) < bound


ASKED = ["the cat sleeps", "", "a dog and a cat " * 20, "x", "Ünïcode – 猫", "the cat sleeps"]


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Every family with its tokenizer; BERT reads token types."""
    root = tmp_path_factory.mktemp("models")
    return {
        name: world.save(world.seeded(build), root / name, token_types=name == "bert")
        for name, build in world.FAMILIES.items()
    }


def opened(folder: Path) -> TextEncoder:
    encoder, tokenizer = load_external(folder, folder.name)
    model = PaddedEncoder(encoder, world.CONTEXT)
    return TextEncoder(model, tokenizer, world.CONTEXT, precision="fp32", device=CPU)


def reference(folder: Path) -> Callable[..., np.ndarray]:
    """What transformers gives for one text, or one behind another of the same token type, alone: the mean over its
    tokens."""
    model: PreTrainedModel = AutoModel.from_pretrained(folder).eval()
    tokenizer = AutoTokenizer.from_pretrained(folder)

    @torch.no_grad()
    def alone(*text: str) -> np.ndarray:
        columns = ([part] for part in text)  # a single empty text would count as none
        tokens = tokenizer(*columns, truncation=True, max_length=world.CONTEXT, return_tensors="pt")
        if len(text) > 1 and "token_type_ids" in tokens:
            tokens["token_type_ids"].zero_()
        return model(**tokens).last_hidden_state[0].mean(0).numpy()

    return alone


@pytest.mark.parametrize("family", world.FAMILIES)
def test_vectors_are_those_of_transformers_whatever_else_is_encoded(family: str, folders: dict[str, Path]) -> None:
    alone, by = reference(folders[family]), opened(folders[family])

    @settings(max_examples=4)
    @given(
        given_texts=texts,
        batch_tokens=st.sampled_from([1, 60, 300, 10_000]),
        chunk=st.sampled_from([1, 7, 4096]),
    )
    def vectors_stand_alone(given_texts: list[str], batch_tokens: int, chunk: int) -> None:
        by.batch_tokens = batch_tokens
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(encoders, "CHUNK_TEXTS", chunk)
            plain, instructed = by.encode(given_texts), by.encode(given_texts, instruction="a bird")
        assert plain.shape == instructed.shape == (len(given_texts), 16) and plain.dtype == np.float32
        for text, vector, behind in zip(given_texts, plain, instructed, strict=True):
            np.testing.assert_allclose(vector, alone(text), atol=1e-5, rtol=0)
            np.testing.assert_allclose(behind, alone("a bird", text), atol=1e-5, rtol=0)

    vectors_stand_alone()


@pytest.mark.parametrize("family", world.FAMILIES)
def test_a_text_without_any_token_has_the_vector_zero(family: str, folders: dict[str, Path]) -> None:
    """Where a tokenizer adds no special tokens; the other texts of its batch have theirs."""
    by = opened(folders[family])
    by.tokenizer.tokenizer.backend_tokenizer.post_processor = None
    cat = by.encode(["cat"])
    found = by.encode(["", "cat", " "])
    assert not found[[0, 2]].any() and by.counts.empty == 2
    np.testing.assert_allclose(found[1], cat[0], atol=1e-5, rtol=0)


def test_texts_are_cut_to_what_is_asked_for_and_to_what_the_model_reads(folders: dict[str, Path]) -> None:
    runs = folders["bert"].parent / "runs"
    model = resolve_model(Layout(runs), str(folders["bert"]))
    contexts = [world.text_encoder(model, runs, max_tokens=most).context for most in (None, 10, 10_000)]
    assert contexts == [world.CONTEXT, 10, world.CONTEXT]


def test_a_pretrained_run_is_opened_as_it_ended(tmp_path: Path) -> None:
    run = write_encoder(tmp_path)
    checkpoint = open_checkpoint(tmp_path / "pretraining" / run.id, run.recipe.stages[-1].steps)
    by = load_encoder(Layout(tmp_path), run.id, CPU)
    assert by.context == run.recipe.longest_context == 32
    assert load_encoder(Layout(tmp_path), run.id, CPU, max_tokens=9).context == 9
    with torch.no_grad():
        tokens = checkpoint.tokenizer("the cat sleeps", return_tensors="pt")
        expected = checkpoint.model.model(**tokens).last_hidden_state.mean(dim=1)
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

"""The parts of contrastive fine-tuning: loss, cached gradients, sampling, the texts of a step."""

from collections import Counter
from collections.abc import Sequence
from operator import attrgetter

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from neobert.data.pairs import Pair
from neobert.data.tokenizers import Framed
from neobert.embeddings.contrastive import (
    GradCache,
    Matching,
    StepCollator,
    StepTexts,
    TextBatch,
    contrastive_losses,
    match_texts,
)
from neobert.embeddings.encoders import EmbeddingModel, PackedEncoder, PaddedEncoder
from neobert.embeddings.pairs import (
    PairCounts,
    Sampling,
    encode_pairs,
    probabilities,
    split_heldout,
)
from neobert.model.build import build_encoder, initialize
from neobert.training.distributed import Process
from neobert.training.engine import Engine
from tests.embeddings.tiny_contrastive import tiny_contrastive, tiny_protocol
from tests.support.tiny_runs import tiny_model

CPU = torch.device("cpu")
TAU = 0.07


class Letters:
    """One token a letter, framed by 1 and 2; the texts of a pair are parted by 2."""

    def frame_all(self, columns: Sequence[Sequence[str]], *, max_tokens: int) -> list[Framed]:
        rows = zip(*columns, strict=True)
        framed = ([1, *(token for text in row for token in (*(ord(c) % 500 for c in text), 2))] for row in rows)
        return [
            Framed([*ids[: max_tokens - 1], 2], None, is_cut=True) if len(ids) > max_tokens else Framed(ids, None)
            for ids in framed
        ]


def random_pairs(count: int, negatives: int = 0, seed: int = 0) -> list[Pair]:
    rng = np.random.default_rng(seed)

    def text() -> str:
        return "".join(rng.choice(list("abcdefgh"), rng.integers(3, 20)))

    return [Pair(text(), text(), tuple(text() for _ in range(negatives))) for _ in range(count)]


def step_of(pairs: list[Pair], **changes: object) -> StepTexts:
    encoded = encode_pairs(pairs, Letters(), 64)
    return StepTexts.of(encoded, np.arange(len(pairs)), tiny_protocol(**{"most_negatives": None, **changes}))


def encoder(dropout: float, dtype: torch.dtype = torch.float64) -> PackedEncoder:
    model = tiny_model(dropout=dropout, width=16)
    built = build_encoder(model, 64)
    initialize(built, model.initialization, 0)
    return PackedEncoder(built).to(dtype).train()


def micro_batches(network: EmbeddingModel, step: StepTexts, tokens: int) -> list[TextBatch]:
    """All micro-batches of a step in one process."""
    collator = StepCollator(network, tokens, "fp32", Process(0, 1), CPU)
    return collator.collate(step, collator.split(step.lengths), collator.process)


def plain_loss(vectors: Tensor, matching: Matching) -> Tensor:
    """Word for word as the paper has it: minus the log of the document's share among document and negatives."""
    total = vectors.new_zeros(())
    for pair, query in enumerate(matching.queries.tolist()):
        terms, own = [], None
        for candidate, text in enumerate(matching.candidates.tolist()):
            if not matching.hidden[pair, candidate]:
                terms.append(torch.exp(torch.cosine_similarity(vectors[query], vectors[text], dim=0) / TAU))
                own = terms[-1] if candidate == matching.targets[pair] else own
        assert own is not None
        total = total - torch.log(own / sum(terms))
    return total


@given(
    texts=st.integers(2, 12),
    pairs=st.lists(st.tuples(st.integers(0, 11), st.integers(0, 11)), min_size=1, max_size=6),
    negatives=st.lists(st.integers(0, 11), max_size=6),
    keep=st.booleans(),
)
@settings(max_examples=60)
def test_the_loss_is_the_papers(texts: int, pairs: list[tuple[int, int]], negatives: list[int], keep: bool) -> None:
    vectors = torch.randn(texts, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(texts))
    queries, documents, hard = (np.array(column, np.int64) % texts for column in (*zip(*pairs, strict=True), negatives))
    matching = match_texts(queries, documents, hard, keep_false_negatives=keep)
    ours = contrastive_losses(vectors, matching, TAU)
    torch.testing.assert_close(ours.sum(), plain_loss(vectors, matching))
    assert ours.isfinite().all()


def test_what_belongs_to_a_query_is_no_negative_of_it() -> None:
    """Two pairs with one query, and two with one document."""
    pairs = [Pair("aa", "b"), Pair("aa", "c"), Pair("d", "b"), Pair("e", "f", ("b", "b"))]
    left_out, kept = step_of(pairs), step_of(pairs, false_negatives="kept")
    assert len(left_out.matching.candidates) == 3 and left_out.matching.hidden.sum() == 2
    assert len(kept.matching.candidates) == 6 and not kept.matching.hidden.any()
    assert len(left_out.texts) == 6, "each text is computed once"


def engine_of(network: EmbeddingModel, contrast: GradCache) -> Engine[TextBatch]:
    recipe = tiny_protocol().optimization
    return Engine(network, contrast.loss, attrgetter("query_count"), recipe, "fp32", CPU, contrast.prepare)


@pytest.mark.parametrize("tokens", [30, 10_000])
def test_a_summed_loss_is_the_released_codes(tokens: int) -> None:
    """Cross-entropy summed over queries, every other document and negative of the batch a candidate: so the norm before
    clipping is that sum's, whatever the micro-batches."""
    network = encoder(0.0, torch.float32)
    of_step = step_of(random_pairs(6, negatives=1), false_negatives="kept")
    (whole,) = micro_batches(network, of_step, 10_000)
    queries, candidates = whole.matching.queries, whole.matching.candidates
    vectors = torch.zeros(len(of_step.texts), 16).index_copy(0, whole.numbers, network(whole.inputs))
    cosines = torch.cosine_similarity(vectors[queries].unsqueeze(1), vectors[candidates].unsqueeze(0), dim=-1)
    code = nn.CrossEntropyLoss(reduction="sum")(cosines / TAU, torch.arange(6))
    code.backward()
    norm = torch.linalg.vector_norm(torch.stack([weight.grad.norm() for weight in network.parameters()]))
    engine = engine_of(encoder(0.0, torch.float32), GradCache(TAU, summed=True))
    measured = engine.step(micro_batches(network, of_step, tokens), 1e-3).measured()
    assert measured.loss == pytest.approx(float(code.detach()), rel=1e-5)
    assert measured.gradient_norm == pytest.approx(float(norm), rel=1e-4)


@pytest.mark.parametrize(("dropout", "tokens"), [(0.0, 20), (0.3, 60)])
def test_cached_gradients_are_the_plain_ones(dropout: float, tokens: int) -> None:
    """A micro-batch has the masks of its seed in both passes; the plain way here seeds once and keeps all graphs."""
    network, of_step = encoder(dropout), step_of(random_pairs(6, negatives=1))
    batches, contrast, loss = micro_batches(network, of_step, tokens), GradCache(TAU), 0.0
    assert len(batches) > 2 and sum(batch.query_count for batch in batches) == 6
    torch.manual_seed(3)
    for batch in contrast.prepare(network, batches):
        part = contrast.loss(network, batch)
        part.backward()
        loss += float(part.detach())
    cached = {name: weight.grad for name, weight in network.named_parameters()}
    torch.manual_seed(3)
    seeds = torch.randint(1 << 62, (len(batches),)).tolist()
    network.zero_grad()
    vectors = torch.zeros(len(of_step.texts), 16)
    for batch, seed in zip(batches, seeds, strict=True):
        torch.manual_seed(seed)
        vectors = vectors.index_copy(0, batch.numbers, network(batch.inputs))
    plain = contrastive_losses(vectors, batches[0].matching, TAU).sum()
    plain.backward()
    assert loss == pytest.approx(float(plain.detach()), rel=1e-6)
    for name, weight in network.named_parameters():
        torch.testing.assert_close(cached[name], weight.grad, rtol=1e-6, atol=1e-6)


@given(
    sizes=st.lists(st.integers(2, 40), min_size=1, max_size=4),
    per_step=st.integers(2, 9),
    seed=st.integers(0, 99),
    cut=st.integers(0, 40),
)
@settings(max_examples=50)
def test_a_draw_depends_on_seed_and_step_alone(sizes: list[int], per_step: int, seed: int, cut: int) -> None:
    """Also when the course is longer; no pair comes twice before all others of its set have come, but for the rest."""
    whole, longer = (Sampling(tuple(sizes), (per_step,) * len(sizes), 0.5, seed, steps) for steps in (40, 90))
    draws = [whole.draw(step) for step in range(1, 41)]
    again = [longer.draw(step) for step in range(cut + 1, 41)]
    for drawn, resumed in zip(draws[cut:], again, strict=True):
        assert drawn.of_set == resumed.of_set and (drawn.pairs == resumed.pairs).all()
    for number, size in enumerate(sizes):
        of_set = [draw.pairs for draw in draws if draw.of_set == number]
        rounds = size // min(per_step, size)
        for start in range(0, len(of_set), rounds):
            seen = np.concatenate(of_set[start : start + rounds])
            assert len(np.unique(seen)) == len(seen) and (seen < size).all()


def test_sets_are_drawn_with_the_square_root_of_their_sizes() -> None:
    sizes, steps = (100, 400, 2500), 20_000
    shares = probabilities(sizes, 0.5)
    assert shares == pytest.approx([10 / 80, 20 / 80, 50 / 80])
    drawn = Counter(Sampling(sizes, (4, 4, 4), 0.5, 0, steps).sets.tolist())
    for number, share in enumerate(shares):
        assert abs(drawn[number] / steps - share) < 4 * (share * (1 - share) / steps) ** 0.5


@pytest.mark.parametrize(("pairs", "heldout"), [(2, 0), (15, 0), (20, 2), (640, 64), (5000, 64)])
def test_held_out_pairs_are_never_trained_on(pairs: int, heldout: int) -> None:
    trained, kept = split_heldout(pairs)
    assert len(kept) == heldout and sorted([*trained, *kept]) == list(range(pairs))


def test_instructions_stand_before_what_they_are_for() -> None:
    queries = encode_pairs([Pair("a", "b", ("c",))], Letters(), 20, query_instruction="do")
    assert queries.queries[0][0].tolist() == [1, ord("d"), ord("o"), 2, ord("a"), 2]
    assert queries.documents[0][0].tolist() == [1, ord("b"), 2]
    both = encode_pairs([Pair("a", "b", ("c",))], Letters(), 20, query_instruction="do", document_instruction="do")
    assert both.documents[0][0].tolist() == [1, ord("d"), ord("o"), 2, ord("b"), 2]
    assert both.negatives[0][0].tolist() == [1, ord("d"), ord("o"), 2, ord("c"), 2]


def test_blank_and_long_texts_are_counted() -> None:
    pairs = [Pair("cat", "dog", ("x", " ")), Pair("  ", "dog"), Pair("a" * 40, "hound"), Pair("cat", "", ("y",))]
    encoded = encode_pairs(pairs, Letters(), 20)
    assert encoded.counts == PairCounts(read=4, kept=2, empty=2, empty_negatives=1, cut=1)
    assert encoded.first_negatives.tolist() == [0, 1, 1] and encoded.queries.lengths.tolist() == [5, 20]


class Padding(nn.Module):
    """What a padded layout needs of an encoder."""

    pad_id = 0


@given(tokens=st.integers(1, 200), processes=st.integers(1, 9), pairs=st.integers(2, 8), negatives=st.integers(0, 2))
@settings(max_examples=50)
def test_every_text_is_computed_by_one_process(tokens: int, processes: int, pairs: int, negatives: int) -> None:
    of_step = step_of(random_pairs(pairs, negatives))
    for network in (encoder(0.0), PaddedEncoder(Padding(), 64)):  # type: ignore[arg-type]
        shares = []
        for rank in range(processes):
            collator = StepCollator(network, tokens, "fp32", Process(rank, processes), CPU)
            groups = collator.split(of_step.lengths)
            assert all(network.slots(of_step.lengths[group]) <= tokens or len(group) == 1 for group in groups)
            shares.append(collator.collate(of_step, groups, collator.process))
        assert len({len(share) for share in shares}) == 1, "processes would wait for each other for ever"
        numbers = torch.cat([batch.numbers for share in shares for batch in share])
        assert sorted(numbers.tolist()) == list(range(len(of_step.texts)))
        assert sum(batch.query_count for share in shares for batch in share) == pairs


def test_runs_share_encoded_pairs_unless_these_are_told_something_else() -> None:
    run = tiny_contrastive("abc")
    told = run.sets[0].model_copy(update={"instruction": "other"})
    assert run.pairs_id(run.sets[0]) == tiny_contrastive("abd", seed=1).pairs_id(run.sets[0]) != run.pairs_id(told)

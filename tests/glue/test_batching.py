"""How examples lie in rows changes no result, and nothing is lost, doubled or mixed on the way."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from neobert.glue.batching import (
    EVALUATION_SLOTS,
    PACKED_SHARE,
    ROW_MULTIPLE,
    PackedLayout,
    arrange,
    evaluation_batches,
    training_batches,
)
from neobert.model.attention import padded_plan, whole_rows_plan
from tests.glue.glue_worlds import CPU, classifier, random_split
from tests.support.small_models import classified

lengths = st.lists(st.integers(1, 60), min_size=1, max_size=40)


@given(lengths)
def test_rows_are_shared_only_where_that_spares_a_fifth_of_the_slots(sizes):
    rows, columns, (count, row_tokens) = arrange(np.array(sizes))
    padded = len(sizes) * -(-max(sizes) // ROW_MULTIPLE) * ROW_MULTIPLE
    assert row_tokens % ROW_MULTIPLE == 0 and len(rows) == len(columns) == len(sizes)
    assert count == len(sizes) or count * row_tokens <= PACKED_SHARE * padded
    assert count * row_tokens <= padded and (columns + sizes <= row_tokens).all()


@settings(max_examples=25)
@given(count=st.integers(1, 50), batch=st.integers(1, 20), seed=st.integers(0, 9))
def test_an_epoch_sees_every_example_once_in_an_order_that_no_batch_size_changes(count, batch, seed):
    split = random_split(count, labels=2, seed=seed)
    batches = list(training_batches(split, batch, 3, seed))
    per_epoch = -(-count // batch)
    assert len(batches) == 3 * per_epoch
    for epoch in range(3):
        examples = np.concatenate(batches[epoch * per_epoch : (epoch + 1) * per_epoch])
        assert sorted(examples) == list(range(count))
        whole = list(training_batches(split, count, 3, seed))[epoch]
        np.testing.assert_array_equal(examples, whole)


@pytest.mark.parametrize("device", EVALUATION_SLOTS)
def test_evaluation_sees_every_example_once_in_full_rows(device):
    split, most = random_split(2000, labels=2), EVALUATION_SLOTS[device]
    batches = list(evaluation_batches(split, torch.device(device)))
    assert sorted(np.concatenate(batches)) == list(range(2000))
    slots = [PackedLayout().collate(split, examples, CPU).token_ids.numel() for examples in batches]
    assert max(slots) <= most and min(slots[:-1], default=most) > 0.5 * most


def alone(model, split, examples, pooling):
    """Logits of one unpadded example at a time."""
    rows = [torch.from_numpy(split[example][0]).long().unsqueeze(0) for example in examples]
    return torch.cat([classified(model, row, whole_rows_plan(row), pooling) for row in rows])


@pytest.mark.parametrize("pooling", ["cls", "mean"])
@pytest.mark.parametrize("positions", ["rotary", "learned"])
@pytest.mark.parametrize("count", [1, 2, 7, 32])
def test_logits_and_gradients_are_those_of_each_example_alone(pooling, positions, count):
    split, examples = random_split(40, labels=3), np.arange(40)[3 : 3 + count]
    model = classifier(labels=3, positions=positions).eval()
    batch = PackedLayout().collate(split, examples, CPU)
    weights = torch.randn(count, 3, generator=torch.Generator().manual_seed(0))
    results = []
    for logits in (PackedLayout().logits(model, batch, pooling), alone(model, split, examples, pooling)):
        (logits * weights).sum().backward()
        results.append((logits.detach(), {name: parameter.grad for name, parameter in model.named_parameters()}))
        model.zero_grad(set_to_none=True)
    torch.testing.assert_close(results[0][0], results[1][0], atol=1e-5, rtol=0)
    torch.testing.assert_close(results[0][1], results[1][1], atol=1e-5, rtol=1e-4)


def test_dropout_of_the_head_does_not_depend_on_how_examples_lie():
    """Packed or one a row, each example of a batch loses the same pooled values."""
    split, examples = random_split(40, labels=2), np.arange(16)
    model = classifier(labels=2, dropout=0.5).train()
    packed = PackedLayout().collate(split, examples, CPU)
    assert packed.token_ids.shape[0] < 16
    texts = [torch.from_numpy(split[example][0]).long() for example in examples]
    padded = torch.nn.utils.rnn.pad_sequence(texts, batch_first=True, padding_value=-1)
    torch.manual_seed(3)
    logits = PackedLayout().logits(model, packed, "cls")
    torch.manual_seed(3)
    expected = classified(model, padded.clamp(min=0), padded_plan(padded >= 0))
    torch.testing.assert_close(logits, expected, atol=1e-5, rtol=0)

"""Speed of pre-training: a step against Hugging Face's models on a CPU."""

import argparse
from collections.abc import Iterator, Mapping

import torch

from benchmarks.contenders import OURS, Peer, Setting, beta_lengths, masked_documents, neobert_recipe
from benchmarks.measuring import OPERATIONS_RATIO, Pairs, Result, count_operations, lowest_ratio, race
from neobert.processes import available_cores
from neobert.recipe import Precision

BURST_STEPS = 3
ROUNDS = 5
PRECISIONS: tuple[Precision, ...] = ("fp32", "bf16")
DOCUMENTS_PER_STEP = 32
PADDED, CONCATENATED, BUCKETED = Peer("bert", "padded"), Peer("bert", "concatenated"), Peer("modernbert", "bucketed")


def at_equal_precision(peer: Peer, *precisions: Precision) -> Pairs:
    """Return the pairs of ours and a peer in each precision, compiled or not."""
    return [(f"{OURS}, {precision}", f"{peer.name}, {precision}") for precision in precisions]


COMPARISONS: Mapping[str, tuple[Peer, Pairs]] = {
    "pretraining_over_bert_padded": (PADDED, at_equal_precision(PADDED, *PRECISIONS)),
    "pretraining_over_bert_concatenated": (CONCATENATED, at_equal_precision(CONCATENATED, *PRECISIONS)),
    "pretraining_over_bert_defaults": (PADDED, [(OURS, f"{PADDED.name}, fp32, eager")]),
    "pretraining_over_modernbert_bucketed": (BUCKETED, at_equal_precision(BUCKETED, "bf16")),
}


def small_setting(count: int) -> Setting:
    """Return a setting with `count` documents of up to 128 tokens for models of 4 × 256."""
    recipe = neobert_recipe("fp32", layers=4, width=256, heads=4, feedforward_width=1024, vocabulary_size=8192)
    documents = masked_documents(beta_lengths(count, 128), recipe.model.vocabulary_size, 128)
    return Setting(recipe, documents, DOCUMENTS_PER_STEP, torch.device("cpu"))


def measure(options: argparse.Namespace) -> Iterator[Result]:
    """Measure a step against Hugging Face's BERT and ModernBERT: same documents, predicted tokens and size."""
    torch.set_num_threads(available_cores())
    setting, peers = small_setting(DOCUMENTS_PER_STEP * BURST_STEPS * ROUNDS), (PADDED, CONCATENATED, BUCKETED)
    counted = count_operations(setting.contenders(("fp32",), peers, ("eager",)), BURST_STEPS)
    found = race(setting.contenders(PRECISIONS, peers), rounds=options.repetitions or ROUNDS, steps=BURST_STEPS)
    for name, (peer, pairs) in COMPARISONS.items():
        ratio, figures = lowest_ratio(found, pairs)
        theirs, own = (counted[f"{side}, fp32, eager"] for side in (peer.name, OURS))
        equal = {OPERATIONS_RATIO: round(theirs / own, 3), "operations per real token": counted}
        yield Result(name, ratio, equal | figures | {"threads": torch.get_num_threads()})

"""Does what was exported compute what the run computed?"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from neobert.errors import ParityOff
from neobert.export.source import PretrainedCheckpoint
from neobert.model.attention import packed_plan

MOST_TOKENS = 64
TEXTS = ("A short text.", "Another, which is rather longer than the first one and has a comma.", "x", "")


def probe_documents(vocabulary_size: int, context: int) -> list[Tensor]:
    """Random token ids of several lengths up to the context, the same every time."""
    longest = min(context, MOST_TOKENS)
    generator = torch.Generator().manual_seed(0)
    lengths = (longest, max(1, longest // 2), max(1, longest // 7), 1)
    return [torch.randint(0, vocabulary_size, (length,), generator=generator) for length in lengths]


def padded(documents: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    """Token ids and mask (documents, longest), padding on the right."""
    token_ids = torch.nn.utils.rnn.pad_sequence(list(documents), batch_first=True)
    mask = torch.nn.utils.rnn.pad_sequence([torch.ones_like(document) for document in documents], batch_first=True)
    return token_ids, mask


@torch.no_grad()
def flat_states(checkpoint: PretrainedCheckpoint, documents: Sequence[Tensor]) -> Tensor:
    """Hidden states (all tokens, width) of documents packed into one row of the engine that trained them."""
    numbers = torch.cat([torch.full_like(document, number) for number, document in enumerate(documents)])
    positions = torch.cat([torch.arange(len(document)) for document in documents])
    plan = packed_plan(numbers[None], positions[None])
    return checkpoint.network.model(torch.cat(list(documents))[None], plan)[0]


@torch.no_grad()
def flat_logits(checkpoint: PretrainedCheckpoint, documents: Sequence[Tensor]) -> Tensor:
    """Logits (all tokens, vocabulary) of the same."""
    return checkpoint.network.decoder(flat_states(checkpoint, documents))


def flat_means(checkpoint: PretrainedCheckpoint, documents: Sequence[Tensor]) -> Tensor:
    """The mean hidden state (documents, width) of each document."""
    states = flat_states(checkpoint, documents).split([len(document) for document in documents])
    return torch.stack([state.mean(dim=0) for state in states])


def require_close(what: str, found: Tensor, expected: Tensor, tolerance: float) -> float:
    """The largest difference, in units of the largest expected number where that exceeds 1.

    Raises:
        ParityOff: it exceeds `tolerance`, or is no number.
    """
    scale = max(1.0, float(expected.abs().max()))
    deviation = float((found.float() - expected).abs().max()) / scale
    if not deviation <= tolerance:
        raise ParityOff(f"the exported {what} differs from the run by {deviation:.1e}, more than {tolerance:.0e}")
    return deviation


def require_equal_weights(found: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    """Check that two state dicts are the same, bit by bit.

    Raises:
        ParityOff: they are not.
    """
    if found.keys() != expected.keys():
        raise ParityOff(f"the exported weights lack or add {', '.join(sorted(found.keys() ^ expected.keys()))}")
    for name, tensor in expected.items():
        if not torch.equal(found[name].cpu(), tensor):
            raise ParityOff(f"the exported tensor {name} is not the run's")


def require_equal_tokens(exported: Callable[..., Mapping[str, Any]], checkpoint: PretrainedCheckpoint) -> None:
    """Check that an exported tokenizer gives the ids, specials and truncation included, that the run was trained on.

    Raises:
        ParityOff: it does not.
    """
    tokenizer = checkpoint.tokenizer
    for text in TEXTS:
        expected = tokenizer.frame(tokenizer.encode([text])[0], max_tokens=checkpoint.run.context)
        found = list(exported(text, truncation=True)["input_ids"])
        if found != expected:
            raise ParityOff(f"the exported tokenizer reads {text!r} as {found}, the run as {expected}")

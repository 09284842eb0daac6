"""Checkpoints to export with their metadata, and checks of exports against them."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from neobert.data.tokenizers import TextTokenizer
from neobert.errors import MissingData, ParityOff
from neobert.executors.corpus import text_tokenizer
from neobert.executors.preparation import open_specified
from neobert.files import is_there
from neobert.kinds.pretraining import PretrainingRun
from neobert.model.attention import packed_plan
from neobert.model.build import build_masked_language_model
from neobert.model.heads import MaskedLanguageModel
from neobert.runs.layout import Layout
from neobert.runs.records import read_record
from neobert.runs.run_file import RunFile, read_run_file
from neobert.training import checkpoints


@dataclass(frozen=True)
class PretrainedCheckpoint:
    """A step of a pre-training run. `record` is that of the finished run, None for earlier steps."""

    folder: Path
    run_file: RunFile
    step: int
    weights: dict[str, Tensor]
    record: dict[str, Any] | None

    @property
    def run(self) -> PretrainingRun:
        """The specification of the run."""
        return self.run_file.specification(PretrainingRun)

    @property
    def layout(self) -> Layout:
        """The layout of the folder of runs."""
        return Layout(self.folder.parent.parent)

    @cached_property
    def network(self) -> MaskedLanguageModel:
        """The training engine's model with these weights, in evaluation mode."""
        network = build_masked_language_model(self.run.recipe.model, self.run.context)
        network.load_state_dict(self.weights)
        return network.eval()

    @cached_property
    def tokenizer(self) -> TextTokenizer:
        """The run's tokenizer."""
        return text_tokenizer(self.layout, self.run, open_specified(self.run_file.source))


def open_checkpoint(folder: Path, step: int | None) -> PretrainedCheckpoint:
    """Open the checkpoint of `step`, or the last one of a finished run.

    Raises:
        ValueError: the folder is that of another kind of run.
        MissingData: there is no such run or step, or the run is unfinished and no step is given.
        DamagedFile: a file does not match its checksum.
    """
    folder = folder.resolve()
    run_file = read_run_file(folder)
    if not isinstance(run_file.run, PretrainingRun):
        raise ValueError(f"{folder} is of the kind {run_file.run.kind}: give that of a pre-training or contrastive run")
    chosen, record = chosen_step(folder, run_file.run.total, step)
    weights = checkpoints.load(folder / "checkpoints", chosen).weights()
    return PretrainedCheckpoint(folder, run_file, chosen, weights, record)


def chosen_step(folder: Path, steps: int, step: int | None) -> tuple[int, dict[str, Any] | None]:
    """Return the step to export of a run of `steps`, and the record if it is the last step of a finished run.

    Raises:
        MissingData: the run is unfinished and no step is given.
    """
    is_done = is_there(folder / "done.json")
    if step is None and not is_done:
        known = ", ".join(map(str, checkpoints.steps_on_disk(folder / "checkpoints"))) or "none"
        raise MissingData(f"{folder} is not finished: name a checkpoint with --step (there: {known})")
    chosen = steps if step is None else step
    return chosen, read_record(folder / "done.json") if is_done and chosen == steps else None


def require_packages(*names: str) -> None:
    """Check that packages are installed.

    Raises:
        ValueError: a package is missing.
    """
    missing = [name for name in names if find_spec(name) is None]
    if missing:
        raise ValueError(f"this export needs {', '.join(missing)}: install the extra with pip install -e '.[export]'")


MOST_TOKENS = 64
TEXTS = ("A short text.", "Another, which is rather longer than the first one and has a comma.", "x", "")


def probes(run: PretrainingRun) -> tuple[list[Tensor], Tensor, Tensor]:
    """Return documents of random tokens, of several lengths up to the context and the same every time; and their token
    ids and mask (documents, longest), padded on the right."""
    longest = min(run.context, MOST_TOKENS)
    generator = torch.Generator().manual_seed(0)
    lengths = (longest, max(1, longest // 2), max(1, longest // 7), 1)
    size = run.recipe.model.vocabulary_size
    documents = [torch.randint(0, size, (length,), generator=generator) for length in lengths]
    mask = torch.arange(longest) < torch.tensor(lengths).unsqueeze(1)
    return documents, torch.nn.utils.rnn.pad_sequence(documents, batch_first=True), mask.long()


@torch.no_grad()
def flat_states(checkpoint: PretrainedCheckpoint, documents: Sequence[Tensor]) -> Tensor:
    """Return hidden states (all tokens, width) of documents packed into one row, computed by the training engine."""
    numbers = torch.cat([torch.full_like(document, number) for number, document in enumerate(documents)])
    positions = torch.cat([torch.arange(len(document)) for document in documents])
    plan = packed_plan(numbers[None], positions[None])
    return checkpoint.network.model(torch.cat(list(documents))[None], plan)[0]


@torch.no_grad()
def flat_logits(checkpoint: PretrainedCheckpoint, documents: Sequence[Tensor]) -> Tensor:
    """Return logits (all tokens, vocabulary) of documents packed into one row, computed by the training engine."""
    return checkpoint.network.decoder(flat_states(checkpoint, documents))


def flat_means(checkpoint: PretrainedCheckpoint, documents: Sequence[Tensor]) -> Tensor:
    """Return the mean hidden state of each document, (documents, width)."""
    states = flat_states(checkpoint, documents).split([len(document) for document in documents])
    return torch.stack([state.mean(dim=0) for state in states])


def require_close(what: str, found: Tensor, expected: Tensor, tolerance: float) -> float:
    """Return the largest difference, relative to the largest expected value if that exceeds 1.

    Raises:
        ParityOff: the difference exceeds `tolerance` or is NaN.
    """
    scale = max(1.0, float(expected.abs().max()))
    deviation = float((found.float() - expected).abs().max()) / scale
    if not deviation <= tolerance:
        raise ParityOff(f"the exported {what} differs from the run by {deviation:.1e}, more than {tolerance:.0e}")
    return deviation


def require_equal_weights(found: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    """Check that two state dicts are equal bit for bit.

    Raises:
        ParityOff: they are not equal.
    """
    if found.keys() != expected.keys():
        raise ParityOff(f"the exported weights lack or add {', '.join(sorted(found.keys() ^ expected.keys()))}")
    for name, tensor in expected.items():
        if not torch.equal(found[name].cpu(), tensor):
            raise ParityOff(f"the exported tensor {name} is not the run's")


def require_equal_tokens(exported: Callable[..., Mapping[str, Any]], checkpoint: PretrainedCheckpoint) -> None:
    """Check that an exported tokenizer returns the ids that the run was trained on, specials and truncation included.

    Raises:
        ParityOff: it returns other ids.
    """
    tokenizer = checkpoint.tokenizer
    for text in TEXTS:
        expected = tokenizer.frame(tokenizer.encode([text])[0], max_tokens=checkpoint.run.context)
        found = list(exported(text, truncation=True)["input_ids"])
        if found != expected:
            raise ParityOff(f"the exported tokenizer reads {text!r} as {found}, the run as {expected}")

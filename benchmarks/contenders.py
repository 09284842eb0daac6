"""Who takes part in a benchmark of pre-training: our step and Hugging Face's models, eager and compiled."""

import os
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal
from unittest import mock

import torch

from ablations.ladder import variants
from benchmarks.documents import MaskedDocuments
from benchmarks.own import NAME, own_batches, own_step
from benchmarks.peer_batches import peer_batches
from benchmarks.peers import Peer, parameters, peer_step
from benchmarks.race import Step
from neobert.model.build import build_masked_language_model
from neobert.recipe import Precision, Pretraining

Mode = Literal["eager", "compiled"]
MODES: tuple[Mode, ...] = ("eager", "compiled")
PARAMETER_TOLERANCE = 0.02
COMPILED_FORMS = 64
"""Forms of one function that torch's compiler keeps: contenders of one class share its functions, and beyond the
default of 8 it would go back to eager without an error."""


def contender_name(name: str, precision: Precision, mode: Mode) -> str:
    """A contender among all."""
    return f"{name}, {precision}, {mode}"


def in_all_modes(name: str, precision: Precision) -> list[str]:
    """The contenders of one name and precision."""
    return [contender_name(name, precision, mode) for mode in MODES]


def neobert_recipe(precision: Precision, **shape: int) -> Pretraining:
    """NeoBERT's pre-training, at another shape where one is given."""
    recipe = variants()["M10"].recipe.pretraining
    model = recipe.model.model_copy(update=shape)
    return recipe.model_copy(update={"model": model, "precision": precision})


@dataclass(frozen=True, eq=False)
class Course:
    """What all contenders of a benchmark share."""

    recipe: Pretraining
    documents: MaskedDocuments
    documents_per_step: int
    device: torch.device
    attention: str = "sdpa"

    def contenders(
        self, precisions: Sequence[Precision], ways: Mapping[Peer, Sequence[Mode]]
    ) -> dict[str, Callable[[], Step]]:
        """Ours in all modes and every peer in those of `ways`, by name."""
        return dict(made for precision in precisions for made in self._in(precision, ways))

    def _in(
        self, precision: Precision, ways: Mapping[Peer, Sequence[Mode]]
    ) -> Iterator[tuple[str, Callable[[], Step]]]:
        recipe = self.recipe.model_copy(update={"precision": precision})
        for mode in MODES:
            yield contender_name(NAME, precision, mode), self._own(recipe, mode)
        for peer, modes in ways.items():
            for mode in modes:
                yield contender_name(peer.name, precision, mode), self._peer(peer, recipe, mode)

    def _own(self, recipe: Pretraining, mode: Mode) -> Callable[[], Step]:
        def make() -> Step:
            compiled = mode == "compiled"
            batches = own_batches(self.documents, self.documents_per_step, fixed=compiled)
            return own_step(recipe, batches, self.device, compiled=compiled)

        return make

    def _peer(self, peer: Peer, recipe: Pretraining, mode: Mode) -> Callable[[], Step]:
        def make() -> Step:
            module = peer.build(recipe.model, self.documents.context, self.attention)
            batches = peer_batches(self.documents, peer.batching, self.documents_per_step)
            return peer_step(module, batches, recipe, self.device, compiled=mode == "compiled")

        return make

    def parameter_counts(self, peers: Sequence[Peer]) -> dict[str, int]:
        """Parameters of our model and of the peers.

        Raises:
            AssertionError: a peer is not of our size.
        """
        model, context = self.recipe.model, self.documents.context
        with torch.device("meta"):
            own = parameters(build_masked_language_model(model, context))
            found = {f"HF {peer.family}": parameters(peer.build(model, context)) for peer in peers}
        for name, count in found.items():
            if abs(count / own - 1) > PARAMETER_TOLERANCE:
                raise AssertionError(f"{name} has {count} parameters and ours {own}: they must agree within 2 %")
        return {"ours": own, **found}

    def figures(self, peers: Sequence[Peer]) -> dict[str, Any]:
        """The setting, for a result file."""
        batches = own_batches(self.documents, self.documents_per_step)
        return {
            "documents": len(self.documents),
            "documents per step": self.documents_per_step,
            "real tokens": self.documents.real_tokens,
            "predicted tokens": sum(batch.predicted_tokens for batch in batches),
            "fill, padded": round(self.documents.padded_fill, 3),
            "fill, ours": round(self.documents.real_tokens / sum(batch.token_ids.numel() for batch in batches), 3),
            "parameters": self.parameter_counts(peers),
            "threads": torch.get_num_threads(),
        }


@contextmanager
def compiling_anew() -> Iterator[None]:
    """Room for all forms of a function, and no compiled code of an earlier run, so that warm-up tells what it costs."""
    with (
        tempfile.TemporaryDirectory() as folder,
        mock.patch.dict(os.environ, {"TORCHINDUCTOR_CACHE_DIR": folder}),
        torch._dynamo.config.patch(recompile_limit=COMPILED_FORMS),
    ):
        yield

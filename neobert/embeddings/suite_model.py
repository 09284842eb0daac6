"""An encoder of this package as a model of mteb. Imports mteb."""

from collections.abc import Mapping
from typing import Any, Unpack

import numpy as np
from mteb.abstasks.task_metadata import TaskMetadata
from mteb.models import ModelMeta
from mteb.models.abs_encoder import AbsEncoder
from mteb.models.model_meta import ScoringFunction
from mteb.types import BatchedInput, EncodeKwargs, PromptType
from torch.utils.data import DataLoader

from neobert.embeddings.suite import EncoderIdentity, SupportsEncode
from neobert.errors import RunFailed
from neobert.identity import identity as identity_of

Array = np.ndarray[Any, np.dtype[Any]]


def model_metadata(identity: EncoderIdentity, prompts: Mapping[str, str]) -> ModelMeta:
    """What mteb keeps beside results. Prompts make results an experiment of the model, in a folder of their own."""
    return ModelMeta.create_empty(
        {
            "name": identity.name if "/" in identity.name else f"neobert/{identity.name}",
            "revision": identity.revision,
            "n_parameters": identity.parameters,
            "max_tokens": identity.context,
            "embed_dim": identity.width,
            "languages": ["eng-Latn"],
            "open_weights": True,
            "framework": ["PyTorch"],
            "similarity_fn_name": ScoringFunction.COSINE,
            "use_instructions": bool(prompts),
            "experiment_kwargs": {"prompts": identity_of(dict(prompts))} if prompts else None,
        }
    )


class SuiteModel(AbsEncoder):
    """mteb asks for the vectors of all texts of a part of a task at once, so that they can be sorted by length."""

    mteb_model_meta: ModelMeta

    def __init__(self, encoder: SupportsEncode, identity: EncoderIdentity, prompts: Mapping[str, str]) -> None:
        self.encoder = encoder
        self.identity = identity
        self.prompts = prompts
        self.mteb_model_meta = model_metadata(identity, prompts)

    def encode(
        self,
        inputs: DataLoader[BatchedInput],
        *,
        task_metadata: TaskMetadata,
        hf_split: str,
        hf_subset: str,
        prompt_type: PromptType | None = None,
        **kwargs: Unpack[EncodeKwargs],
    ) -> Array:
        """Vectors (texts, width) of all texts of a loader.

        Raises:
            RunFailed: they are not finite, or not of the encoder's width.
        """
        texts = [text for batch in inputs for text in batch["text"]]
        role = "document" if prompt_type == PromptType.document else "query"
        vectors = self.encoder.encode(texts, instruction=self.prompts.get(role))
        expected = (len(texts), self.identity.width)
        if vectors.shape != expected or not np.isfinite(vectors).all():
            raise RunFailed(f"{self.identity.name} gives no finite vectors of {expected}, but {vectors.shape}")
        return vectors

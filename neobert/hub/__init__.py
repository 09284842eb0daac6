"""NeoBERT's transformers models; `import neobert.hub` registers them with transformers' Auto classes.

Only this package defines transformers models. All of them are built from the blocks of `neobert.model`.

    >>> from neobert.hub import NeoBERTModel
    >>> model = NeoBERTModel.from_pretrained("chandar-lab/NeoBERT")
"""

import transformers

from neobert.hub.configuration import NeoBERTConfig
from neobert.hub.modeling import (
    NeoBERTForMaskedLM,
    NeoBERTForSequenceClassification,
    NeoBERTForTokenClassification,
    NeoBERTModel,
    NeoBERTPreTrainedModel,
)

__all__ = [
    "NeoBERTConfig",
    "NeoBERTForMaskedLM",
    "NeoBERTForSequenceClassification",
    "NeoBERTForTokenClassification",
    "NeoBERTModel",
    "NeoBERTPreTrainedModel",
]

AUTO_CLASSES = {
    "AutoModel": NeoBERTModel,
    "AutoModelForMaskedLM": NeoBERTForMaskedLM,
    "AutoModelForSequenceClassification": NeoBERTForSequenceClassification,
    "AutoModelForTokenClassification": NeoBERTForTokenClassification,
}
"""The model that each of transformers' Auto classes loads."""

transformers.AutoConfig.register(NeoBERTConfig.model_type, NeoBERTConfig, exist_ok=True)
for auto, model in AUTO_CLASSES.items():
    getattr(transformers, auto).register(NeoBERTConfig, model, exist_ok=True)

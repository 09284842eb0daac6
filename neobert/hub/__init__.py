"""NeoBERT as transformers knows models; `import neobert.hub` registers the classes with its Auto classes.

This package is the one door to transformers' model classes. All of them stand on the blocks of `neobert.model`.

    >>> from neobert import NeoBERTModel
    >>> model = NeoBERTModel.from_pretrained("chandar-lab/NeoBERT")
"""

from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForMaskedLM,
    AutoModelForQuestionAnswering,
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
)

from neobert.hub.configuration import NeoBERTConfig
from neobert.hub.modeling import (
    NeoBERTForMaskedLM,
    NeoBERTForQuestionAnswering,
    NeoBERTForSequenceClassification,
    NeoBERTForTokenClassification,
    NeoBERTModel,
    NeoBERTPreTrainedModel,
)

__all__ = [
    "NeoBERTConfig",
    "NeoBERTForMaskedLM",
    "NeoBERTForQuestionAnswering",
    "NeoBERTForSequenceClassification",
    "NeoBERTForTokenClassification",
    "NeoBERTModel",
    "NeoBERTPreTrainedModel",
]

AutoConfig.register(NeoBERTConfig.model_type, NeoBERTConfig, exist_ok=True)
AutoModel.register(NeoBERTConfig, NeoBERTModel, exist_ok=True)
AutoModelForMaskedLM.register(NeoBERTConfig, NeoBERTForMaskedLM, exist_ok=True)
AutoModelForSequenceClassification.register(NeoBERTConfig, NeoBERTForSequenceClassification, exist_ok=True)
AutoModelForTokenClassification.register(NeoBERTConfig, NeoBERTForTokenClassification, exist_ok=True)
AutoModelForQuestionAnswering.register(NeoBERTConfig, NeoBERTForQuestionAnswering, exist_ok=True)

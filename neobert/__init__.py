"""Mechanisms of a BERT-to-NeoBERT ablation study: model, data, pre-training, fine-tuning, records.

Nothing heavy is imported here, so that commands answer `--help` at once; the transformers classes come from
`neobert.hub` when they are first asked for.
"""

__version__ = "0.1.0"

HUB_CLASSES = (
    "NeoBERTConfig",
    "NeoBERTForMaskedLM",
    "NeoBERTForQuestionAnswering",
    "NeoBERTForSequenceClassification",
    "NeoBERTForTokenClassification",
    "NeoBERTModel",
)


def __getattr__(name: str) -> object:
    if name not in HUB_CLASSES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from neobert import hub

    return vars(hub)[name]


def __dir__() -> list[str]:
    return sorted([*globals(), *HUB_CLASSES])

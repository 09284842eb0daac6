"""Mechanisms of a BERT-to-NeoBERT ablation study: model, data, pre-training, fine-tuning, records.

Nothing heavy is imported here, so that `--help` is fast. On first access, the transformers classes are imported from
`neobert.hub`, and the functions of the Python interface from `ablations`, because they need the ladder.
"""

TYPE_CHECKING = False  # typing's own would import typing
if TYPE_CHECKING:
    from ablations.api import build as build
    from ablations.api import load_records as load_records
    from ablations.api import study as study
    from ablations.api import train as train
    from ablations.api import variants as variants
    from neobert.hub import NeoBERTConfig as NeoBERTConfig
    from neobert.hub import NeoBERTForMaskedLM as NeoBERTForMaskedLM
    from neobert.hub import NeoBERTForQuestionAnswering as NeoBERTForQuestionAnswering
    from neobert.hub import NeoBERTForSequenceClassification as NeoBERTForSequenceClassification
    from neobert.hub import NeoBERTForTokenClassification as NeoBERTForTokenClassification
    from neobert.hub import NeoBERTModel as NeoBERTModel

__version__ = "0.1.0"

HUB_CLASSES = (
    "NeoBERTConfig",
    "NeoBERTForMaskedLM",
    "NeoBERTForQuestionAnswering",
    "NeoBERTForSequenceClassification",
    "NeoBERTForTokenClassification",
    "NeoBERTModel",
)
DOOR = ("build", "load_records", "study", "train", "variants")


def __getattr__(name: str) -> object:
    if name in HUB_CLASSES:
        from neobert import hub

        return vars(hub)[name]
    if name in DOOR:
        from neobert.beside import import_beside

        import_beside("ablations")
        from ablations import api

        return vars(api)[name]
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *HUB_CLASSES, *DOOR])

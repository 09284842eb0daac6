"""Mechanisms of a BERT-to-NeoBERT ablation study: model, data, pre-training, fine-tuning, records.

Nothing heavy is imported here, so that commands answer `--help` at once.
"""

__version__ = "0.1.0"

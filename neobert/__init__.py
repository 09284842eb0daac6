"""Mechanisms of a BERT-to-NeoBERT ablation study: model, data, pre-training, fine-tuning, records.

The transformers classes are in `neobert.hub`; the Python interface of the study is `import ablations`.
"""

__version__ = "0.1.0"

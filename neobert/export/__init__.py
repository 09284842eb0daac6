"""A pre-trained or contrastive run as files that other programs load: transformers, sentence-transformers.

python -m neobert.export RUN --to hf|sentence-transformers --out DIR [--step N]
"""

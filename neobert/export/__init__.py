"""A pre-trained or contrastive run as files that other programs load: transformers, sentence-transformers, ONNX.

python -m neobert.export RUN --to hf|sentence-transformers|onnx --out DIR [--step N]
"""

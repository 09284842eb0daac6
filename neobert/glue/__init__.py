"""The eight GLUE tasks: what they are, their metrics, their tokens, and the fine-tuning of an encoder on them."""

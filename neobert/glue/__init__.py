"""The eight GLUE tasks: definitions, metrics, tokenisation, and the fine-tuning of encoders."""

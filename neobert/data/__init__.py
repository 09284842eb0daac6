"""From sources of text to the rows of one optimizer step. Torch is imported by `batching` alone."""

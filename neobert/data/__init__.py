"""Text, labelled data and pairs: from a source to batches of tensors. Only `batches` imports torch.

A source names corpora and tasks and gives each an identity (`sources`, `catalog`); a corpus is tokenised into shards
(`preparation`, `shards`), packed into rows (`rows`) and collated with its masks (`masking`, `batches`). `requirements`
and `hub_download` bring published data into a folder.
"""

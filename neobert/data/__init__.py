"""Text, labelled data and pairs: from a source to batches of tensors. Only `batches` imports torch.

A source provides corpora and tasks and identifies each by an origin (`sources`, `catalog`). A corpus is tokenised into
shards (`preparation`, `shards`), ordered (`streams`), packed into rows (`packing`) and collated with its masks
(`masking`, `batches`).
`requirements` and `hub_download` download published data into a folder.
"""

"""The encoder and its heads. Nothing is imported here, so that `neobert.model.size` stays free of torch."""

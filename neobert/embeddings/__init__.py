"""Text embeddings: encoders, contrastive fine-tuning and evaluation on MTEB."""

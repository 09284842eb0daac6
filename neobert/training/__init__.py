"""Training: the loop, its engines and ranks, checkpoints, and pre-training."""

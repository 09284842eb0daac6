"""Runs on disk: what they are, who works on them, what came out, and what may go. Nothing in here imports torch."""

"""Runs on disk: specifications, claims, workers, records, index and cleanup. Nothing here imports torch."""

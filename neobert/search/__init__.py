"""Searches by Optuna: spaces, samplers, the journal, and the studies that workers ask. The only importer of Optuna."""

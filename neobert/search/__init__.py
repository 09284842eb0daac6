"""Searches by Optuna: spaces, samplers, storages, and the studies that workers ask. The only importer of Optuna."""

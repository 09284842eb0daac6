"""Checks of the project's claims about GPUs. This module imports nothing."""

"""Measurements side by side; each benchmark writes result files, and README.md shows them all."""

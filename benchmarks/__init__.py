"""Measurements side by side: each module is a command that writes one result file; README.md shows them all."""

"""Thin commands that sweep a grid over finished models."""

"""Texts as vectors: what MTEB measures."""

"""Measurements of a pre-trained encoder that need no fine-tuning."""

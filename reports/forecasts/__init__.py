"""Forecasts of larger runs from smaller ones, and their outcomes. Nothing is imported here."""

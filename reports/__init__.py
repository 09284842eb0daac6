"""Figures and tables as pure functions of records. Torch is never imported here."""

"""Figures and tables as pure functions of records; torch is never imported here."""

"""Logs of keep-or-discard experiments: reading, noise, verdicts, tables and the picture."""

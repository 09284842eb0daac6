"""The study: the ladder of variants with its designs and scales, and the commands that run it."""

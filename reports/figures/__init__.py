"""A module a figure: its numbers, how it is drawn, and the table of the same numbers. Nothing is imported here."""

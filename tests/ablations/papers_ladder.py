"""The names of the paper's ladder, for tests of what is printed or recorded of it; others may be added to the tree."""

PAPERS_LADDER = tuple(f"M{number}" for number in range(11))

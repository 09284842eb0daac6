"""Commands that run grids: GLUE points, tasks of MTEB, and peak learning rates."""

"""From flags to running work: checks, costs, execution here, submission to SLURM, and what commands print of a plan."""

"""Launching a plan: flags, checks, costs, local execution, submission to SLURM, and listings."""

"""SLURM: cluster profiles, submission, and the payload of jobs."""

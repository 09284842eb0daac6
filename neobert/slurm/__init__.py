"""SLURM: what a cluster is asked for, submission, and what runs inside a job."""

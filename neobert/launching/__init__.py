"""Where work runs: processes of this machine, or jobs of a SLURM cluster through submitit."""

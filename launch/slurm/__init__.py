"""Services under Slurm: submitted, watched, replaced, measured and stopped from a login node."""

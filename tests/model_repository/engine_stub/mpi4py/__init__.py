"""What model.py uses of MPI, for one process that plays one rank."""

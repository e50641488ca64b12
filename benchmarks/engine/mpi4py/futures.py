class MPICommExecutor:
    """There for its name: the leader lends itself to nobody."""

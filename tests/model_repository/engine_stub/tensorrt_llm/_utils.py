import os


def global_mpi_rank() -> int:
    return int(os.environ.get("ENGINE_RANK", "0"))


def global_mpi_size() -> int:
    return int(os.environ.get("ENGINE_WORLD", "1"))

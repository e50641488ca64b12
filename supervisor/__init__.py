"""The process that runs one service in one Slurm job: it starts steps, watches them, hands over.

Standard library and Python 3.9 only: the folder is copied into bundles and runs on compute nodes,
outside of containers, where nothing of this toolkit is installed.
"""

"""The parts of the Triton model; `model.py` next to this package is the file that Triton loads.

Triton appends the folder of a model's version to Python's path, so that a package there is found
by its name, after everything that is installed: hence a name that nothing else has.
"""

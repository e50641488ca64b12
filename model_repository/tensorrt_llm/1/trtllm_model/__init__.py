"""The parts of the Triton model beside them, `model.py`, which alone Triton looks for by name.

Triton appends the folder of a model's version to Python's path, so that a package there is found
by its name, after everything that is installed: hence a name that nothing else has.
"""

"""A few checks in the place of the whole smoke suite, for each `python -m launch` of a shell or job
that has this folder in `PYTHONPATH`. test_rehearse.py runs the whole suite on both servers."""

import sys
from functools import partial

KEPT = ("P1", "P2", "P3", "P6", "P8", "N2")

if sys.orig_argv[1:3] == ["-m", "launch"]:
    from launch.smoke import suite

    few = [check for check in (*suite.POSITIVE, *suite.NEGATIVE) if check.id in KEPT]
    suite.run = partial(suite.run, checks=few)

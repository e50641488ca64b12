"""The command line of the launcher."""

import sys


def say(text: str) -> None:
    """Results go to stdout, everything else goes here."""
    print(text, file=sys.stderr, flush=True)

"""Which tests of a whole run are run once more, one after the other.

A whole run starts dozens of servers on as few as two cores. At most three failures may be of that;
more are faults. Whatever is run again is named at the end of the run, so that none goes unseen.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

FAILED = Path("v/cache/lastfailed")
AT_MOST = 3


def names(failed: list[str]) -> list[str]:
    """Without the group that a run side by side adds; none if too many or one is no test."""
    if len(failed) > AT_MOST or not all("::" in name for name in failed):
        return []
    return [name.rpartition("@")[0] or name for name in failed]


if __name__ == "__main__":
    failed = Path(sys.argv[1]) / FAILED  # of the cache of a run
    if failed.exists():
        print(*names(list(json.loads(failed.read_text()))), sep="\n")

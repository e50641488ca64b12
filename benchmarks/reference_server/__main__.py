"""`python -m benchmarks.reference_server API SCHEDULE LOG`: serves until its standard input ends.

SCHEDULE is JSON. The port of loopback is the first line of the output.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from .responses import script
from .schedule import Schedule
from .server import StreamingServer


def main() -> None:
    api, schedule, path = sys.argv[1:]
    asked = Schedule(**json.loads(schedule))
    script(asked, api)  # which takes longer than a request may wait
    with Path(path).open("w", encoding="utf-8") as log:
        server = StreamingServer(asked, log, sys.stdin.fileno())
        print(server.port, flush=True)
        server.run()


main()

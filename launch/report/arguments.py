"""The arguments of `launch report`."""

from __future__ import annotations

import argparse
from pathlib import Path

from . import REPORT


def add(parser: argparse.ArgumentParser) -> None:
    text = "a run folder, a bench.json, or a result file of aiperf, sglang, vllm or guidellm"
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN", help=text)
    text = f"the page; {REPORT} in the run folder, or here where there are several runs"
    parser.add_argument("-o", "--output", type=Path, metavar="FILE", help=text)
    parser.add_argument("--json", action="store_true", help="print what the page compares as JSON")

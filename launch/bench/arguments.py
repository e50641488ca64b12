"""The arguments of `launch bench`, and of its two other forms."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import get_args

from ..cli.arguments import add_access, seconds
from .clients import APIS
from .sweep import CONCURRENCIES
from .window import Wanted

WORKLOADS = ("fixed", "sharegpt", "trace", "shared-prefix", "agent")
EPILOG = """\
Other forms, each with a --help of its own:
  bench calibrate   tell this host's own error and limit as a client
  bench diff A B    judge two results: exit code 6 if B is worse than A
"""


def add(parser: argparse.ArgumentParser, words: Sequence[str]) -> None:
    """The arguments of the form that the first word names; any other word is a server."""
    forms: dict[str, Callable[[argparse.ArgumentParser], None]] = {
        "calibrate": _add_calibrate,
        "diff": _add_diff,
    }
    form = forms.get(words[0]) if words else None
    if form is None:
        _add_bench(parser)
        return
    parser.add_argument("form", metavar=words[0])
    form(parser)


def _run(name: str) -> Callable[[argparse.Namespace], None]:
    """A form of the verb, imported when it is run."""

    def run(options: argparse.Namespace) -> None:
        from . import verb

        getattr(verb, name)(options)

    return run


def _add_calibrate(parser: argparse.ArgumentParser) -> None:
    parser.description = "Tell this host's own error and limit as a client, from a true schedule."
    parser.set_defaults(run=_run("calibrate"))
    parser.add_argument("--api", choices=APIS, action="append", help="only this one; repeatable")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument(
        "--output", type=Path, metavar="FILE", help="keep it here, not in the cache"
    )


def _add_diff(parser: argparse.ArgumentParser) -> None:
    parser.description = "Judge two results point by point; exit code 6 if B is worse than A."
    parser.set_defaults(run=_run("diff"))
    parser.add_argument("a", type=Path, metavar="A", help="a run folder or a bench.json")
    parser.add_argument("b", type=Path, metavar="B", help="the one to judge")
    parser.add_argument(
        "--margin", type=percent, default=5.0, metavar="PERCENT", help="less is no difference (5)"
    )
    parser.add_argument("--json", action="store_true", help="print JSON")


def _add_bench(parser: argparse.ArgumentParser) -> None:
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = EPILOG
    parser.set_defaults(run=_run("bench"))
    parser.add_argument("server", metavar="BUNDLE|URL", help="a bundle's folder, or a URL")
    parser.add_argument("--target", help="needed if the bundle has several")
    parser.add_argument("--api", choices=APIS, help="how requests are sent; by default what fits")
    _add_workload(parser.add_argument_group("what is asked"))
    _add_load(parser.add_argument_group("when it is asked"))
    _add_measures(parser.add_argument_group("what is measured"))
    _add_quality(parser.add_argument_group("quality, by an lm-eval of your own environment"))
    parser.add_argument("--run-dir", type=Path, metavar="DIR", help="for the results; under runs/")
    parser.add_argument("--json", action="store_true", help="print the whole document")
    add_access(parser)


def _add_workload(group: argparse._ArgumentGroup) -> None:
    group.add_argument("--workload", choices=WORKLOADS, default="fixed")
    group.add_argument("--isl", type=count, help="prompt tokens; else the bundle's, or 1024")
    group.add_argument("--osl", type=count, help="output tokens; else the bundle's, or 1024")
    group.add_argument(
        "--range-ratio",
        type=share,
        default=1.0,
        metavar="R",
        help="fixed: lengths are drawn from R of them up to them",
    )
    group.add_argument("--data", type=Path, metavar="FILE", help="sharegpt, trace: your file")
    group.add_argument(
        "--context-length", type=count, metavar="N", help="sharegpt: most tokens of a request"
    )
    group.add_argument("--prefix", type=count, metavar="N", help="shared-prefix: tokens of it")
    group.add_argument(
        "--groups", type=count, default=1, metavar="N", help="shared-prefix: different ones"
    )
    group.add_argument("--calls", type=count, default=5, metavar="N", help="agent: calls of a task")
    group.add_argument(
        "--turn", type=count, default=200, metavar="N", help="agent: new prompt tokens of a call"
    )
    group.add_argument(
        "--retries", type=whole, default=3, metavar="N", help="agent: of a call that may be retried"
    )
    group.add_argument("--tokenizer", type=Path, metavar="DIR", help="a folder with tokenizer.json")
    group.add_argument("--temperature", type=float, default=0.0, metavar="T")
    group.add_argument(
        "--stop-at-eos", action="store_true", help="answers may be shorter than what is asked for"
    )
    group.add_argument("--seed", type=int, default=0, help="the same one asks the same")


def _add_load(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--concurrency",
        type=counts,
        metavar="C,C",
        help=f"requests at a time, a point each ({','.join(map(str, CONCURRENCIES))})",
    )
    group.add_argument(
        "--rate", type=rates, metavar="R,R", help="requests per second, a point each"
    )
    group.add_argument(
        "--burstiness",
        type=positive,
        default=1.0,
        metavar="B",
        help="shape of gamma arrivals: 1 is Poisson, less is burstier",
    )
    group.add_argument("--speed", type=positive, default=1.0, help="trace: times as fast")
    group.add_argument("--requests", type=count, metavar="N", help="of each point; or tasks")
    group.add_argument("--duration", type=seconds, metavar="S", help="of each point, in seconds")
    group.add_argument("--warmup", type=whole, metavar="N", help="requests before each point")
    group.add_argument("--request-timeout", type=seconds, default=600.0, metavar="S")
    group.add_argument("--processes", type=count, metavar="N", help="client processes")


def _add_measures(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--window",
        choices=get_args(Wanted),
        default="steady",
        help="leave out the load's begin and end, or count all of it, as published results do",
    )
    group.add_argument(
        "--slo", type=limits, metavar="ttft_ms=N,itl_ms=N,e2e_ms=N", help="else the bundle's"
    )
    group.add_argument("--price-per-gpu-hour", type=positive, metavar="USD")
    group.add_argument("--gpus", type=count, metavar="N", help="else the bundle's")
    group.add_argument("--calibration", type=Path, metavar="FILE", help="else this host's, if any")


def _add_quality(group: argparse._ArgumentGroup) -> None:
    group.add_argument("--quality", choices=["lm-eval"], help="evaluate after the measurement")
    group.add_argument("--quality-python", type=Path, metavar="FILE", help="that has lm-eval")
    group.add_argument("--quality-tasks", metavar="T,T", help="names of its tasks")
    group.add_argument("--quality-include", type=Path, metavar="DIR", help="tasks of your own")
    group.add_argument("--quality-limit", type=count, metavar="N", help="items of each task")
    group.add_argument(
        "--quality-reference",
        type=references,
        default={},
        metavar="TASK=SCORE",
        help="scores to hold against, such as those of FP8",
    )


def count(text: str) -> int:
    if (value := int(text)) < 1:
        raise argparse.ArgumentTypeError(f"{text} is below 1")
    return value


def whole(text: str) -> int:
    if (value := int(text)) < 0:
        raise argparse.ArgumentTypeError(f"{text} is below 0")
    return value


def positive(text: str) -> float:
    if not 0 < (value := float(text)) < float("inf"):
        raise argparse.ArgumentTypeError(f"{text} is not above 0")
    return value


def share(text: str) -> float:
    if not 0 < (value := float(text)) <= 1:
        raise argparse.ArgumentTypeError(f"{text} is not above 0 and at most 1")
    return value


def percent(text: str) -> float:
    if not 0 <= (value := float(text)) < 100:
        raise argparse.ArgumentTypeError(f"{text} is no percentage below 100")
    return value


def counts(text: str) -> list[int]:
    return [count(word) for word in text.split(",")]


def rates(text: str) -> list[float]:
    return [positive(word) for word in text.split(",")]


def limits(text: str) -> dict[str, float]:
    found = {
        name: positive(value) for name, _, value in (w.partition("=") for w in text.split(","))
    }
    if wrong := set(found) - {"ttft_ms", "itl_ms", "e2e_ms"}:
        raise argparse.ArgumentTypeError(f"{', '.join(sorted(wrong))}: no limit has this name")
    return found


def references(text: str) -> dict[str, float]:
    return {name: share(value) for name, _, value in (w.partition("=") for w in text.split(","))}

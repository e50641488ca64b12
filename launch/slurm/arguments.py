"""The arguments of `launch slurm`: one group for each of its verbs."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path

from ..cli.arguments import seconds

ENGINES = ("tensorrt_llm", "reference")


def add(parser: argparse.ArgumentParser) -> None:
    verbs = parser.add_subparsers(metavar="VERB", required=True)

    def verb(name: str, text: str) -> argparse.ArgumentParser:
        sub = verbs.add_parser(name, help=text, description=f"{text[0].upper()}{text[1:]}.")
        sub.set_defaults(run=_run(name))
        sub.add_argument(
            "--state",
            type=Path,
            metavar="DIR",
            help="where services keep their state, seen by all nodes; "
            "else $SERVICE_STATE_FOLDER, the bundle's, or runs",
        )
        return sub

    _add_probe(verb("probe", "try out what works on a cluster and write its site profile"))
    _add_submit(verb("submit", "start the service of a bundle as a job"))
    _add_status(verb("status", "show services, their jobs and where they are reached"))
    _add_logs(verb("logs", "print the log of a service's job"))
    _add_stop(verb("stop", "drain a service and end its jobs"))
    _add_replace(verb("replace", "let a new bundle take over a service, or leave it as it is"))
    _add_bench(verb("bench", "measure a service by a job array and write one report"))


def _run(name: str) -> Callable[[argparse.Namespace], None]:
    """A verb, imported when it is run."""

    def run(options: argparse.Namespace) -> None:
        from . import verb

        getattr(verb, name)(options)

    return run


def _add_sbatch(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--sbatch",
        action="append",
        default=[],
        metavar="OPTION",
        help="one more option for sbatch, as in --sbatch=--partition=debug; may be repeated",
    )


def _add_job(parser: argparse.ArgumentParser) -> None:
    _add_sbatch(parser)
    parser.add_argument(
        "--engine",
        choices=ENGINES,
        default=ENGINES[0],
        help="reference serves a miniature without a GPU, on nodes that see this installation",
    )


def _add_probe(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("-o", "--output", type=Path, metavar="FILE", help="the profile; or stdout")
    parser.add_argument("--name", help="of the site; else Slurm's name of the cluster")
    for name in ("partition", "account", "qos", "reservation", "constraint"):
        parser.add_argument(f"--{name}", help="that jobs ask for; tried with all else")
    parser.add_argument(
        "--image",
        action="append",
        default=[],
        metavar="SERVER=IMAGE",
        help="an image of trtllm_serve or triton to try containers with; may be repeated",
    )
    parser.add_argument(
        "--mount", action="append", default=[], metavar="SRC:DST", help="tried in the container"
    )
    parser.add_argument(
        "--timeout", type=seconds, default=300.0, metavar="S", help="that a trial may wait (300)"
    )


def _add_submit(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("bundle", type=Path)
    _add_job(parser)
    parser.add_argument(
        "--preflight", action="store_true", help="look on a node first, by a short job"
    )
    parser.add_argument("--wait", action="store_true", help="until clients can use the service")
    parser.add_argument("--timeout", type=seconds, metavar="S", help="that a wait may take")
    parser.add_argument("--json", action="store_true", help="print JSON")


def _add_status(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("names", nargs="*", metavar="NAME", help="else every service")
    parser.add_argument("--json", action="store_true", help="print JSON")


def _add_logs(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", metavar="NAME")
    parser.add_argument("--job", metavar="ID", help="else the newest")
    parser.add_argument("--step", metavar="STEP", help="that of a step, else the supervisor's")
    parser.add_argument(
        "-f", "--follow", action="store_true", help="go on until the job is no more"
    )


def _add_stop(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", metavar="NAME")
    parser.add_argument("--now", action="store_true", help="cancel instead of draining")
    parser.add_argument(
        "--timeout", type=seconds, default=900.0, metavar="S", help="to wait for its end (900)"
    )


def _add_replace(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", metavar="NAME")
    parser.add_argument("bundle", type=Path, help="a bundle of the same name")
    _add_job(parser)
    parser.add_argument(
        "--preflight", action="store_true", help="look on a node first, by a short job"
    )
    parser.add_argument("--timeout", type=seconds, metavar="S", help="until it must be admitted")
    parser.add_argument(
        "--stand-by",
        type=seconds,
        default=5.0,
        metavar="S",
        help="that the admitted job must hold before clients are sent to it (5)",
    )


def _add_bench(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "service", metavar="NAME|BUNDLE", help="one that runs, or a bundle to serve meanwhile"
    )
    _add_job(parser)
    parser.add_argument(
        "--option",
        action="append",
        default=[],
        metavar="OPTION",
        help="one more option for launch bench, as in --option=--isl=512; may be repeated; "
        "else the workload is the bundle's",
    )
    parser.add_argument(
        "--here", action="store_true", help="measure from this host instead of by jobs"
    )
    parser.add_argument("--run-dir", type=Path, metavar="DIR", help="for the results; under runs/")
    parser.add_argument("--timeout", type=seconds, metavar="S", help="that a start may take")

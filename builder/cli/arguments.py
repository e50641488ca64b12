"""Arguments that several verbs share."""

from __future__ import annotations

import argparse
from pathlib import Path

from ..command import Override

SITE = "targets.slurm.site"  # what --site sets
ASSUME_RELEASE = "engine.assume_release=true"  # what --assume-release sets
ASSUME_RELEASE_HELP = "go on with an engine release that this toolkit does not know"

Parser = argparse.ArgumentParser


def add_deployment(parser: Parser) -> None:
    parser.add_argument("deployment", help="a deployment file, or the name of a preset")
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="PATH=VALUE",
        help="change a value of the deployment, e.g. workload.concurrency=32",
    )
    parser.add_argument(
        "--target",
        action="append",
        default=[],
        metavar="NAME",
        help="render for this as well, e.g. kubernetes, monitoring or handoff",
    )
    add_advisories(parser)
    parser.add_argument(
        "--site",
        action="append",
        dest="set",
        type=lambda file: Override(f"{SITE}={file}", "--site"),
        metavar="FILE",
        help="the profile of a Slurm cluster: the deployment runs there as well",
    )
    parser.add_argument(
        "--strict",
        action="append_const",
        dest="set",
        const=Override("strict=true", "--strict"),
        help="refuse versions of which it is not known whether they are vulnerable",
    )
    parser.add_argument(
        "--assume-release",
        action="append_const",
        dest="set",
        const=Override(ASSUME_RELEASE, "--assume-release"),
        help=ASSUME_RELEASE_HELP,
    )


def add_output(parser: Parser) -> None:
    text = "the folder"
    parser.add_argument("-o", "--output", type=Path, required=True, metavar="DIR", help=text)


def add_advisories(parser: Parser) -> None:
    text = "advisories from a folder of their own, not those that ship"
    parser.add_argument("--advisories", type=Path, metavar="FOLDER", help=text)


def add_json(parser: Parser) -> None:
    parser.add_argument("--json", action="store_true", help="print JSON")

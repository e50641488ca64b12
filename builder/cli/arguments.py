"""The arguments of the builder's verbs, one function for each that has any."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

SITE = "targets.slurm.site"  # what --site sets

Parser = argparse.ArgumentParser


def presets(parser: Parser) -> None:
    _json(parser)


def inspect(parser: Parser) -> None:
    parser.add_argument("checkpoint", help="a folder, or a hub name whose facts ship")
    _json(parser)


def plan(parser: Parser) -> None:
    _deployment(parser)
    _json(parser)


def render(parser: Parser) -> None:
    _deployment(parser)
    _folder(parser)
    parser.add_argument("--force", action="store_true", help="replace whatever DIR holds")


def check(parser: Parser) -> None:
    parser.add_argument("paths", type=Path, nargs="+", metavar="PATH", help="a file or a folder")
    parser.add_argument(
        "--release",
        action="append",
        default=[],
        help="the engine release; given twice, what is right for one only is explained",
    )
    parser.add_argument("--role", choices=("agg", "prefill", "decode"), help="what the server does")
    parser.add_argument("--gpu", help="the kind of GPU, where the files do not say it")
    text = "also write the findings as SARIF 2.1.0, for code review"
    parser.add_argument("--sarif", type=Path, metavar="FILE", help=text)
    text = "also write them as GitLab's code quality report"
    parser.add_argument("--code-quality", type=Path, metavar="FILE", help=text)
    _json(parser)
    _advisories(parser)


def explain(parser: Parser) -> None:
    parser.add_argument("bundle", type=Path)
    parser.add_argument("path", nargs="?", help="an option path; all of them if left out")
    _json(parser)


def diff(parser: Parser) -> None:
    parser.add_argument("old", type=Path)
    parser.add_argument("new", type=Path)
    _json(parser)


def verify(parser: Parser) -> None:
    parser.add_argument("bundle", type=Path)
    text = "who may sign, as for ssh-keygen: lines of NAME and public key; one of them must have"
    parser.add_argument("--signers", type=Path, metavar="FILE", help=text)
    parser.add_argument("--identity", metavar="NAME", help="it must be this one of the signers")
    _json(parser)


def sign(parser: Parser) -> None:
    parser.add_argument("bundle", type=Path)
    text = "a private key, or the public one of a key in the agent"
    parser.add_argument("--key", type=Path, required=True, metavar="FILE", help=text)


def advisories(parser: Parser) -> None:
    _json(parser)
    _advisories(parser)
    actions = parser.add_subparsers(metavar="ACTION", dest="action")
    text = (
        "Merge security bulletins of NVIDIA, CSAF 2.0 files, into the advisories that deployments "
        "are judged by. Without -o, the files of this installation are replaced; with it, plan, "
        "render and check take the new ones by --advisories FOLDER."
    )
    sub = actions.add_parser("update", help="take in newer bulletins", description=text)
    sub.add_argument("bulletins", type=Path, nargs="*", metavar="CSAF.json", help="bulletins")
    text = "also all bulletins about our products below this folder"
    sub.add_argument("--from", dest="folder", type=Path, metavar="FOLDER", help=text)
    sub.add_argument("-o", "--output", type=Path, metavar="FOLDER", help="write the files there")


def release(parser: Parser) -> None:
    actions = parser.add_subparsers(metavar="ACTION", dest="action", required=True)
    text = "list the tables that ship, and tables from files"
    sub = actions.add_parser("list", help=text, description=text)
    sub.add_argument("tables", nargs="*", metavar="TABLE.json", help="imported tables")
    _json(sub)

    text = "write the table of a release from an engine or from its manifest"
    sub = actions.add_parser("import", help=text, description=text)
    source = sub.add_mutually_exclusive_group()
    source.add_argument(
        "--from-installed",
        nargs="?",
        default=sys.executable,
        const=sys.executable,
        metavar="PYTHON",
        help="a Python that has tensorrt_llm (default: this one)",
    )
    source.add_argument("--manifest", type=Path, help="llm_args_golden_manifest.json of a release")
    sub.add_argument("--name", required=True, help="the name of the release")
    sub.add_argument("--like", required=True, help="the release to carry over from what is unknown")
    sub.add_argument("-o", "--output", type=Path, required=True, metavar="FILE.json")


def miniature(parser: Parser) -> None:
    parser.add_argument("checkpoint", help="a folder, or a hub name whose facts ship")
    _folder(parser)
    parser.add_argument("--seed", type=int, default=0, help="another seed gives other weights")


def _deployment(parser: Parser) -> None:
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
    _advisories(parser)
    parser.add_argument(
        "--site",
        action="append",
        dest="set",
        type=lambda file: f"{SITE}={file}",
        metavar="FILE",
        help="the profile of a Slurm cluster: the deployment runs there as well",
    )


def _folder(parser: Parser) -> None:
    text = "the folder"
    parser.add_argument("-o", "--output", type=Path, required=True, metavar="DIR", help=text)


def _advisories(parser: Parser) -> None:
    text = "advisories that `advisories update -o FOLDER` has written, not those that ship"
    parser.add_argument("--advisories", type=Path, metavar="FOLDER", help=text)


def _json(parser: Parser) -> None:
    parser.add_argument("--json", action="store_true", help="print JSON")

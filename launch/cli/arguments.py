"""Arguments that several verbs share, and their meaning: times, access, the server to use."""

from __future__ import annotations

import argparse
import os
import re
import sys
from dataclasses import replace
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import builder
from builder.diagnostics import Diagnostic
from builder.errors import BadInput

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from ..access import ClientFiles
    from ..endpoint import Endpoint
    from ..target import Target
    from ..trust import Requirement

# HOST:PORT, which somebody may write for a URL.
ADDRESS = re.compile(r"(\[[0-9a-fA-F:]+\]|[\w.-]+):\d+(/\S*)?")
# The names of the engines' records, which are not read for every `--help`, and the stand-in.
_RECORDS = Path(builder.__file__).parent / "data" / "engines"
ENGINES = (*sorted(path.stem for path in _RECORDS.glob("*.yaml")), "reference")

Number = TypeVar("Number", int, float)


def _number(text: str, kind: type[Number], fits: Callable[[Number], bool], must_be: str) -> Number:
    try:
        value = kind(text)
    except ValueError:
        what = f"{text!r} is no {'whole ' if kind is int else ''}number"
        raise argparse.ArgumentTypeError(what) from None
    if not fits(value):
        raise argparse.ArgumentTypeError(f"{text} must be {must_be}")
    return value


def seconds(text: str) -> float:
    """A time in seconds, above 0 and finite."""
    return _number(text, float, lambda value: 0 < value < inf, "a number of seconds > 0")


def count(text: str) -> int:
    return _number(text, int, lambda value: value >= 1, ">= 1")


def whole(text: str) -> int:
    return _number(text, int, lambda value: value >= 0, ">= 0")


def positive(text: str) -> float:
    return _number(text, float, lambda value: 0 < value < inf, "> 0")


def share(text: str) -> float:
    return _number(text, float, lambda value: 0 < value <= 1, "> 0 and <= 1")


def percent(text: str) -> float:
    return _number(text, float, lambda value: 0 <= value < 100, "a percentage >= 0 and < 100")


def temperature(text: str) -> float:
    return _number(text, float, lambda value: 0 <= value < inf, ">= 0")


def counts(text: str) -> list[int]:
    return _different([count(word) for word in text.split(",")])


def rates(text: str) -> list[float]:
    return _different([positive(word) for word in text.split(",")])


def _different(values: list[Number]) -> list[Number]:
    """Two points of one name would be one in every comparison."""
    if again := [value for place, value in enumerate(values) if value in values[:place]]:
        raise argparse.ArgumentTypeError(f"{again[0]:g} is there twice")
    return values


def latency_limits(text: str) -> dict[str, float]:
    found = {
        name: positive(value) for name, _, value in (w.partition("=") for w in text.split(","))
    }
    if wrong := set(found) - {"ttft_ms", "itl_ms", "e2e_ms"}:
        raise argparse.ArgumentTypeError(
            f"unknown limit {', '.join(sorted(wrong))}; known: ttft_ms, itl_ms, e2e_ms"
        )
    return found


def shares_by_name(text: str) -> dict[str, float]:
    return {name: share(value) for name, _, value in (w.partition("=") for w in text.split(","))}


# An option: its names, type, default, metavar and help. The type is `bool` for a flag and a tuple
# of words for a choice; an option whose default is a list may be repeated.
Option = tuple[str, Any, Any, str | None, str | None]


def add_options(parser: argparse._ActionsContainer, rows: Iterable[Option]) -> None:
    for names, kind, default, metavar, text in rows:
        more: dict[str, Any] = {"type": kind, "default": default, "metavar": metavar}
        if kind is bool:
            more = {"action": "store_true"}
        elif isinstance(kind, tuple):
            more = {"choices": kind, "default": default}
        elif isinstance(default, list):
            more["action"] = "append"
        parser.add_argument(*names.split(), help=text, **more)


def add_run(parser: argparse.ArgumentParser, text: str) -> None:
    add_options(parser, (
        ("--run-dir", Path, None, "DIR", f"{text}; new, under runs/"),
        ("--timeout", seconds, None, "S", "seconds that a server may take to start"),
    ))  # fmt: skip


# Files only: a secret in an argument would be there for everyone on the machine to read.
ACCESS: tuple[Option, ...] = (
    ("--key-file", Path, None, "FILE",
     "the key of the server or of restricted APIs, in its first line"),
    ("--tls-ca", Path, None, "FILE", "who signed the certificate of the gRPC server"),
    ("--tls-certificate", Path, None, "FILE",
     "the client's certificate, where the server wants one"),
    ("--tls-key", Path, None, "FILE", "its key"),
    ("--tls-name", None, None, "NAME", "the name in the server's certificate"),
)  # fmt: skip
SIGNERS: tuple[Option, ...] = (
    ("--signers", Path, None, "FILE",
     "who may have signed the bundle, as for ssh-keygen; one of them must have"),
    ("--identity", None, None, "NAME", "it must be this one of the signers"),
)  # fmt: skip


def requirements_from(options: argparse.Namespace) -> tuple[Requirement, ...]:
    """Who must have signed a bundle; verbs without the option know the policy's alone."""
    from .. import trust

    given = vars(options)
    return trust.required(given.get("signers"), given.get("identity"))


def endpoint_from(options: argparse.Namespace) -> Endpoint:
    from .. import access, discovery, endpoint, target, trust

    if "://" not in options.server:
        if ADDRESS.fullmatch(options.server) and not Path(options.server).exists():
            what = "is neither a bundle's folder nor a URL"
            address = options.server.partition("/")[0]
            raise BadInput(Diagnostic(options.server, what, f"write http://{address}"))
        found = trust.read(Path(options.server), requirements_from(options))
        return endpoint.from_target(with_access(target.read_one(found, options.target), options))
    if options.target:
        raise BadInput(
            Diagnostic("--target", "is for bundles; a URL says what it is by its scheme")
        )
    shown = access.read({}, _client_files(options), options.tls_name)
    named = endpoint.from_url(options.server, shown)
    served = discovery.identified(named, options.server)
    if served.server != named.server:
        where = f"{served.url}{f' and grpc://{served.grpc}' if served.grpc else ''}"
        print(f"{options.server} is {served.record.title}: {where}", file=sys.stderr, flush=True)
    return served


def with_access(target: Target, options: argparse.Namespace) -> Target:
    """The target with what its clients show, checked before anything is started."""
    target = replace(
        target.as_set_in(os.environ),
        client_files=_client_files(options),
        server_name=options.tls_name,
    )
    target.access()
    return target


def _client_files(options: argparse.Namespace) -> ClientFiles:
    from ..access import ClientFiles

    files = (options.key_file, options.tls_ca, options.tls_certificate, options.tls_key)
    if bool(options.tls_certificate) != bool(options.tls_key):
        what = "must be given together"
        raise BadInput(Diagnostic("--tls-certificate and --tls-key", what))
    return ClientFiles(*files)

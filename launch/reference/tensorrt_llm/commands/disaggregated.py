"""`trtllm-serve disaggregated`: the file of a router of prefill and decode servers, served."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from builder.diagnostics import Diagnostic
from builder.documents import read_text, scan_yaml
from builder.errors import BadInput, ToolkitError
from builder.lint import kinds

from .. import options
from ..logger import LEVELS, configure, logger
from .listener import bind, run

COMMAND = "disaggregated"
NAME = f"trtllm-serve {COMMAND}"
TIMEOUT_S = 180
SIDES = ("context_servers", "generation_servers")
# What the stand-in has in one form only. Keys that change nothing here are not listed.
ONLY: Mapping[str, Any] = {
    "schedule_style": "context_first",
    "conditional_disagg_config": None,
    "disagg_cluster": None,
    "disagg_coordinator_url": None,
    "num_workers": 1,
}
ONLY_ROUTER = "round_robin"


def main(arguments: Sequence[str]) -> int:
    """The exit code is 0 after a stop by signal, 1 for a fault, 2 for wrong usage."""
    flags = _parser().parse_args(arguments)
    try:
        _serve(flags)
    except ToolkitError as fault:
        for problem in fault.diagnostics:
            print(f"{NAME}: {problem}", file=sys.stderr)
        return 1
    except OSError as fault:
        print(f"{NAME}: {fault}", file=sys.stderr)
        return 1
    return 0


def _parser() -> argparse.ArgumentParser:
    """The command's own flags.

    Source: TensorRT-LLM tensorrt_llm/commands/serve.py, `disaggregated`.
    """
    parser = argparse.ArgumentParser(
        prog=NAME,
        description="The router of the deployment toolkit's reference engine, not TensorRT-LLM.",
        allow_abbrev=False,
    )
    parser.add_argument("-c", "--config_file", type=Path, required=True)
    parser.add_argument("-t", "--server_start_timeout", type=int, default=TIMEOUT_S)
    parser.add_argument("-r", "--request_timeout", type=int, default=TIMEOUT_S)
    parser.add_argument("-l", "--log_level", choices=sorted(LEVELS), default="info")
    return parser


def read(path: Path) -> Mapping[str, Any]:
    """The file, as the format of the release has it. Raises `BadInput` with all its faults."""
    documents = scan_yaml(read_text(path))
    content = kinds.read(documents, options.release())
    faults = [fault for document in documents for fault in document.faults]
    if content is None or content.kind != kinds.DISAGGREGATED:
        problems = [Diagnostic(str(path), f.message, f.fix) for f in faults]
        raise BadInput(problems or Diagnostic(str(path), "names no context and generation servers"))
    faults += [fault for fault in content.faults if fault.severity == "error"]
    problems = [Diagnostic(f"{path}:{f.location.line}: {f.path}", f.message, f.fix) for f in faults]
    problems += [] if faults else _not_here(documents[0].data)
    if problems:
        raise BadInput(problems)
    document: Mapping[str, Any] = documents[0].data
    return document


def _not_here(document: Mapping[str, Any]) -> list[Diagnostic]:
    """What the release takes and the stand-in does not have."""
    found = []
    for name, only in ONLY.items():
        if document.get(name, only) != only:
            found.append(Diagnostic(name, f"the reference engine has only {only}", "leave it out"))
    for side in SIDES:
        servers = document.get(side) or {}
        found += _address_problems(f"{side}.urls", servers)
        if (servers.get("router") or {}).get("type", ONLY_ROUTER) != ONLY_ROUTER:
            what = f"the reference engine has only {ONLY_ROUTER}"
            found.append(Diagnostic(f"{side}.router.type", what, "leave it out"))
    return found


def _address_problems(where: str, servers: Mapping[str, Any]) -> Iterator[Diagnostic]:
    """The release takes each apart at its colon."""
    urls = servers.get("urls") or []
    if not urls:
        yield Diagnostic(where, "are missing", "name at least one server")
    for url in urls:
        if url.count(":") != 1 or not url.partition(":")[2].isdecimal():
            yield Diagnostic(where, f"{url} is not host:port", "write host:port")


def _serve(flags: argparse.Namespace) -> None:
    configure(flags.log_level)
    logger.info(
        "this is the router of the deployment toolkit's reference engine, not TensorRT-LLM: its "
        "servers hand over no KV cache, and the decode server computes the prompt once more"
    )
    document = read(flags.config_file)
    prefill, decode = (document[side]["urls"] for side in SIDES)
    with bind(document.get("hostname", "localhost"), document.get("port", 8000)) as listener:
        from ..router import Router

        router = Router(prefill, decode, flags.request_timeout)
        router.wait(flags.server_start_timeout)
        run(router.app, listener)

"""`vllm serve` of the reference engine: a release's flags and option file become a running server.

Options are checked against the release's table. A few of them have their effect, the others none:
the arithmetic is that of the reference engine.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from builder.diagnostics import Diagnostic
from builder.errors import BadInput
from builder.facts import engines, servers
from builder.facts import release as releases
from builder.facts.release import Release
from builder.rules.validation import validate
from tensorrt_llm import options as engine_options
from tensorrt_llm.commands import serve
from tensorrt_llm.logger import announce, configure, logger
from tensorrt_llm.server import Surface

ENGINE, SERVER = "vllm", "vllm_serve"
NAME = "vllm serve"
# By the words that plans have for them; what the reference engine does with them.
HONOURED = ("max_batch_size", "max_num_tokens", "max_seq_len")
# Without an option, long prompts are read in parts, metrics are there, and answers can be guided.
ALWAYS = {
    "enable_chunked_prefill": True,
    "return_perf_metrics": True,
    "enable_iter_perf_stats": True,
    "guided_decoding_backend": "xgrammar",
}


def main(arguments: Sequence[str] | None = None) -> int:
    """The exit code is 0 after a stop by signal, 1 for a fault, 2 for wrong usage."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    if given[:1] != ["serve"]:
        print("vllm: the reference engine has only serve", file=sys.stderr)
        return 2
    engine = engines.load(ENGINE)
    name = os.environ.get("VLLM_REFERENCE_RELEASE") or releases.known(engine)[-1]
    release = releases.load(name, engine=engine)
    parser = argparse.ArgumentParser(prog=NAME, allow_abbrev=False)
    for flag in release.serve_flags:
        if flag.positional:
            parser.add_argument(flag.name, nargs="?")
            continue
        kind = serve.conversion(flag)
        spellings = [one for one in flag.spellings if not one.startswith("--no-")]
        if len(spellings) < len(flag.spellings):
            kind = {"action": argparse.BooleanOptionalAction}
        parser.add_argument(*spellings, dest=flag.name, default=argparse.SUPPRESS, **kind)
    typed = vars(parser.parse_args(given[1:]))
    return serve.exit_code(NAME, lambda: _serve(release, typed))


def _serve(release: Release, typed: Mapping[str, Any]) -> None:
    configure("info")
    announce()
    from_file = serve.read_options(Path(typed["config"])) if "config" in typed else {}
    flags = {name.replace("-", "_"): value for name, value in from_file.items()} | dict(typed)
    model = flags.get("model_tag") or flags.get("model")
    if not model:
        raise BadInput(Diagnostic("MODEL", "is missing", "name a checkpoint folder"))
    options = {name: flags[name] for name in flags if name in release.top_level}
    for name in ("model", "served_model_name"):
        options.pop(name, None)
    problems = list(validate(release, options))
    if errors := [one for one in problems if one.severity == "error"]:
        raise BadInput(errors)
    if flags.get("headless"):  # the first node computes here for all of them
        stops = (signal.SIGTERM, signal.SIGINT)
        signal.pthread_sigmask(signal.SIG_BLOCK, stops)
        logger.info(
            "node %s of %s, led by %s", *map(flags.get, ("node_rank", "nnodes", "master_addr"))
        )
        logger.info("stopped by %s", signal.Signals(signal.sigwait(stops)).name)
        return
    served = flags.get("served_model_name")
    flags["model"] = str(model)
    flags["served_model_name"] = served[0] if isinstance(served, list) else served
    engine = {"model": flags["model"], **_reference_options(release, options)}
    serve.answer(flags, engine, lambda: Surface(servers.load(SERVER), release))


def _reference_options(release: Release, options: Mapping[str, Any]) -> dict[str, Any]:
    """The options that have an effect here, in the words of the reference engine."""
    names = {release.option_path(word): word for word in HONOURED}
    found = {word: options[name] for name, word in names.items() if name in options}
    if drafting := _drafting(options.get("speculative_config") or {}):
        found["speculative_config"] = drafting
    if idle := sorted(set(options) - set(names) - set(found)):
        logger.info("accepted, but not applicable on this machine: %s", ", ".join(idle))
    return {**found, **ALWAYS}


def _drafting(speculative: Mapping[str, Any]) -> dict[str, Any]:
    """The same in the words of the reference engine's release; empty for a method it has not."""
    own = engine_options.release()
    rows = own.paths[own.option_path("speculative_config.decoding_type")]
    methods = engine_options.methods(own.engine).items()
    kinds = {method: name for name, method in methods if any(name in row["values"] for row in rows)}
    method = engine_options.methods(engines.load(ENGINE)).get(str(speculative.get("method")))
    if method not in kinds:
        return {}
    length = own.option_path("mtp_draft_tokens") if method == "mtp" else "max_draft_len"
    drafted = speculative.get("num_speculative_tokens", 1)
    found = {"decoding_type": kinds[method], length.rpartition(".")[2]: drafted}
    more = {
        "model": own.option_path("draft_model").rpartition(".")[2],
        "prompt_lookup_max": "max_matching_ngram_size",
    }
    return found | {word: speculative[name] for name, word in more.items() if name in speculative}

"""Whether vLLM's own classes take the options of commands; run by the Python that has vLLM.

Standard input has a JSON list: of commands, each the words behind `vllm`, and of arguments of the
engine by name, as Triton's backend hands them on. The last line of the output is a list too: for
each of them `null`, or the engine's words against it. Nothing is served, and no GPU is asked for.
"""

import io
import json
import sys
from contextlib import redirect_stderr
from typing import Any

from vllm.engine.arg_utils import AsyncEngineArgs
from vllm.entrypoints.launchers.cli_args import make_arg_parser, validate_parsed_serve_args
from vllm.utils.argparse_utils import FlexibleArgumentParser

SHOWN_LINES = 3


def refusal(given: list[str] | dict[str, Any]) -> str | None:
    said = io.StringIO()
    try:
        with redirect_stderr(said):
            engine = of_command(given) if isinstance(given, list) else AsyncEngineArgs(**given)
            engine.create_engine_config()
    except SystemExit:  # of the parser, which shows its usage first
        return "\n".join(lines(said.getvalue())[-SHOWN_LINES:])
    except Exception as fault:  # whatever its classes raise is their answer
        return "\n".join(lines(f"{type(fault).__name__}: {fault}")[:SHOWN_LINES])
    return None


def lines(text: str) -> list[str]:
    return [line for line in text.splitlines() if line.strip()]


def of_command(words: list[str]) -> AsyncEngineArgs:
    parser = make_arg_parser(FlexibleArgumentParser(prog="vllm serve"))
    options = parser.parse_args(words[words[:1] == ["serve"] :])
    options.model = options.model_tag or options.model
    validate_parsed_serve_args(options)
    return AsyncEngineArgs.from_cli_args(options)


if __name__ == "__main__":
    answers = [refusal(given) for given in json.load(sys.stdin)]
    print(f"\n{json.dumps(answers)}")

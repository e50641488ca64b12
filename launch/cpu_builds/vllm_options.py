"""Whether vLLM's own classes take the options of a command; run by the Python that has vLLM.

Its arguments are those of `vllm serve`. Nothing is served and no GPU is asked for. Ends with 0, or
with 1 and the engine's words.
"""

import sys

from vllm.engine.arg_utils import AsyncEngineArgs
from vllm.entrypoints.launchers.cli_args import make_arg_parser
from vllm.utils.argparse_utils import FlexibleArgumentParser


def main() -> None:
    arguments = sys.argv[1:]
    if arguments[:1] == ["serve"]:
        del arguments[0]
    parser = make_arg_parser(FlexibleArgumentParser(prog="vllm serve"))
    options = parser.parse_args(arguments)
    if options.model_tag:
        options.model = options.model_tag
    AsyncEngineArgs.from_cli_args(options).create_engine_config()
    print("accepted")


if __name__ == "__main__":
    main()

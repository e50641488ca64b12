"""The command line of verbs: parses it, runs a verb, reports its errors, completes it in a shell.

Everything that a verb prints, including names of files and text from others, reaches the terminal
as printable text only.
"""

from __future__ import annotations

import argparse
import errno
import gc
import os
import shlex
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import redirect_stderr, redirect_stdout, suppress
from importlib.util import find_spec
from itertools import takewhile
from pathlib import Path
from typing import Any, Literal, NoReturn, TextIO, cast

from .credentials import mask
from .diagnostics import Diagnostic, closest, nearest, one_line, printable
from .errors import BadInput, ToolkitError

EXTRAS: Mapping[str, tuple[str, ...]] = {
    "launch": ("httpx", "tritonclient", "grpc", "google", "hpack"),
    "rehearse": (
        *("pytriton", "numpy", "torch", "transformers", "tokenizers", "safetensors"),
        *("fastapi", "uvicorn", "prometheus_client", "pydantic", "llguidance"),
    ),
}


def missing_extra(module: str | None) -> BadInput | None:
    """The error for a module that could not be imported; `None` if no extra provides it."""
    first = (module or "").partition(".")[0]
    for extra, modules in EXTRAS.items():
        if first in modules:
            what = "is not installed, and this command needs it"
            remedy = f"install the extra {extra}, in a checkout with: pip install -e '.[{extra}]'"
            return BadInput(Diagnostic(f"Python module {module}", what, remedy))
    return None


def require_modules(*modules: str) -> None:
    """Raises `BadInput` if one of the modules is not installed."""
    found: list[Diagnostic] = []
    for module in modules:
        if find_spec(module) is None and (fault := missing_extra(module)):
            found += fault.diagnostics
    if found:
        raise BadInput(found)


DEBUG = "TRTLLM_TOOLKIT_DEBUG"
LAST_STREAM = 2  # the number of stderr
# Errors of the machine: no space, no permission, too many open files.
OF_THE_MACHINE = frozenset(
    (
        *(errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EIO, errno.EACCES),
        *(errno.EPERM, errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ESTALE, errno.ENAMETOOLONG),
        *(errno.ELOOP, errno.ENXIO),
        *(errno.ENOENT, errno.ENOTDIR, errno.ESRCH),  # removed by another since it was listed
    )
)
MOST_ERRORS = 200  # shown per command: each file of a large folder may be wrong
# A verb keeps most objects until it ends: Python's garbage collection after every 700 objects took
# a tenth of its time.
OBJECTS_BETWEEN_COLLECTIONS = 50_000


class PrintableText:
    """A stream that escapes characters that could control a terminal."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        encoding = self._stream.encoding or "utf-8"
        safe = printable(text).encode(encoding, "backslashreplace")
        return self._stream.write(safe.decode(encoding))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def run(verb: Callable[[], None]) -> int:
    """The exit code of a verb: 0, its error's code, 1 for a bug, 130 if interrupted.

    A `KeyboardInterrupt` may carry another `exit_code`.
    """
    gc.set_threshold(OBJECTS_BETWEEN_COLLECTIONS)
    while (number := os.open(os.devnull, os.O_RDWR)) <= LAST_STREAM:
        pass  # closed by the parent: the next opened file would receive the output
    os.close(number)
    nothing = Path(os.devnull)
    given = (stream or nothing.open("w") for stream in (sys.stdout, sys.stderr))
    streams = (cast("TextIO", PrintableText(stream)) for stream in given)
    with redirect_stdout(next(streams)), redirect_stderr(next(streams)):
        code = _run(verb)
        for stream in (sys.stdout, sys.stderr):
            _end(stream)
        return code


def _end(stream: TextIO) -> None:
    """Flush a stream, or drop what cannot be written, which would fail at interpreter exit."""
    try:
        stream.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def _run(verb: Callable[[], None]) -> int:
    try:
        verb()
        sys.stdout.flush()
    except ToolkitError as error:
        return _report(error)
    except ModuleNotFoundError as absent:
        fault = missing_extra(absent.name)
        return _report(fault) if fault else _report_bug(absent)
    except BrokenPipeError:
        pass  # the reader closed the pipe, as `| head` does
    except KeyboardInterrupt as interrupt:
        return int(getattr(interrupt, "exit_code", 130))
    except OSError as refusal:
        if refusal.errno not in OF_THE_MACHINE:
            return _report_bug(refusal)
        where, why = refusal.filename or "output", (refusal.strerror or "").lower()
        _say(one_line(f"error: {where}: cannot be written or read: {why}"))
        return BadInput.exit_code
    except MemoryError:
        what = "out of memory; use a smaller input, or a machine with more memory"
        _say(f"error: {what}")
        return BadInput.exit_code
    except Exception as bug:
        return _report_bug(bug)
    return 0


def _report(error: ToolkitError) -> int:
    for diagnostic in error.diagnostics[:MOST_ERRORS]:
        _say(f"{diagnostic.severity}: {diagnostic}")
        for line in diagnostic.log:
            _say(f"    {one_line(line)}")
    if (left := len(error.diagnostics) - MOST_ERRORS) > 0:
        _say(f"error: {left} more; fix these first")
    return error.exit_code


def _report_bug(bug: Exception) -> int:
    if os.environ.get(DEBUG):
        import traceback  # takes a while to import

        traceback.print_exc()
    what = one_line(f"a bug in this toolkit, {type(bug).__name__}: {bug}")
    _say(f"error: {what}; please report it with the output of {DEBUG}=1")
    return 1


def _say(text: str) -> None:
    """Print to stderr; if that fails, the exit code still reports the error."""
    with suppress(OSError):
        print(text, file=sys.stderr, flush=True)


class Override(str):
    """A `path=value` for the deployment file; `option` is the command-line option used."""

    def __new__(cls, text: str, option: str = "--set") -> Override:
        found = super().__new__(cls, text)
        found.option = option
        return found

    option: str


class Parser(argparse.ArgumentParser):
    """Shows its help if a verb is missing, and the nearest name for a misspelt verb or option.

    `elsewhere` maps words that are not verbs here to the right command.
    """

    elsewhere: Mapping[str, str] = {}

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        words = list(sys.argv[1:] if args is None else args)
        verbs = [row for row in self._actions if isinstance(row, argparse._SubParsersAction)]
        own = list(takewhile(lambda word: word.startswith("-"), words)) if verbs else words
        self._check_options(own)
        if verbs and not words:
            self.print_help()
            raise SystemExit(2)
        for action in verbs:
            verb = next(iter(words[len(own) :]), None)
            if verb is not None and verb not in action.choices:
                kind = str(action.metavar).lower()
                instead = self.elsewhere.get(verb)
                remedy = f"write {instead}" if instead else nearest(verb, action.choices)
                self.error(f"unknown {kind} {verb!r}; {remedy}")
        return super().parse_known_args(words, namespace)

    def _get_values(self, action: argparse.Action, arg_strings: list[str]) -> Any:
        """Refuse `--` as a value: argparse drops it, and `--signers=--` would be empty."""
        found = super()._get_values(action, arg_strings)
        if action.nargs is None and found == []:
            self.error(f"argument {'/'.join(action.option_strings) or action.dest}: -- is no value")
        return found

    def error(self, message: str) -> NoReturn:
        super().error(mask(message))

    def _check_options(self, words: Sequence[str]) -> None:
        """Refuse unknown long options; argparse itself refuses ambiguous abbreviations."""
        known = self._option_string_actions
        for word in takewhile(lambda word: word != "--", words):
            name = word.partition("=")[0]
            if name.startswith("--") and not any(option.startswith(name) for option in known):
                near = closest(name, known)
                self.error(
                    f"unknown option {name}; {f'did you mean {near}?' if near else 'see -h'}"
                )


Shell = Literal["bash", "zsh"]
Words = Callable[[], Sequence[str]]

# What zsh needs to take a function that is written for bash. A second compinit would forget others.
_ZSH = """\
(( $+functions[compdef] )) || { autoload -U +X compinit && compinit }
autoload -U +X bashcompinit && bashcompinit
"""

# Completes `python -m` for programs with such a script, unless something else completes python;
# zsh has its own completion for python.
_PYTHON = """\
_trtllm_python() {
  [[ ${COMP_WORDS[1]} == -m ]] && ((COMP_CWORD > 2)) || return 0
  ! declare -F "_trtllm_${COMP_WORDS[2]}" >/dev/null || "_trtllm_${COMP_WORDS[2]}"
}
complete -p python >/dev/null 2>&1 || complete -o default -F _trtllm_python python python3
"""
# The shell offers files if no word fits.
_FUNCTION = """\
_{name}() {{
  local cur=${{COMP_WORDS[COMP_CWORD]}} prev=${{COMP_WORDS[COMP_CWORD - 1]}}
  local verb="" offered="" index=1
  [[ ${{COMP_WORDS[0]}} != *python* ]] || index=3
  for ((; index < COMP_CWORD; index++)); do
    case "$verb ${{COMP_WORDS[index]}}" in
{verbs}
    esac
  done
  case "$verb,$prev" in
{values}
    *)
      case "$verb,$cur" in
{options}
      esac ;;
  esac
  COMPREPLY=($(compgen -W "$offered" -- "$cur"))
}}
complete -o default -F _{name} {command}
"""


def completion_script(
    shell: Shell, parser: argparse.ArgumentParser, command: str, known: Mapping[str, Words]
) -> str:
    """A shell script that completes a command, which is called `trtllm-` and its module.

    `known` supplies values of arguments that have no fixed choices, by argument name.
    """
    parsers = dict(_parsers(parser, ""))
    verbs = [
        _case(verb if " " in verb else f" {verb}", f'verb="{verb}"') for verb in parsers if verb
    ]
    options, values = [], []
    for verb, one in parsers.items():
        names = [name for name in one._option_string_actions if name.startswith("--")]
        words: list[str] = []
        for action in one._actions:
            found = list(action.choices or known.get(action.dest, tuple)())
            if not action.option_strings:
                words += found
            elif action.nargs != 0:  # of other values than these, files are offered
                values += [_case(f"{verb},{name}", _words(found)) for name in action.option_strings]
        options += [_case(f"{verb},-", _words(names), "*"), _case(f"{verb},", _words(words), "*")]
    text = _FUNCTION.format(
        name=command.replace("-", "_"),
        command=command,
        verbs="\n".join(verbs),
        values="\n".join(values),
        options="\n".join(options),
    )
    return _ZSH + text if shell == "zsh" else text + _PYTHON


def _parsers(
    parser: argparse.ArgumentParser, verb: str
) -> Iterator[tuple[str, argparse.ArgumentParser]]:
    """A parser and its verbs' parsers, each with the words that select it."""
    yield verb, parser
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for name, one in action.choices.items():
                yield from _parsers(one, f"{verb} {name}".strip())


def _case(pattern: str, then: str, more: str = "") -> str:
    return f"    {shlex.quote(pattern)}{more}) {then} ;;"


def _words(words: Sequence[str]) -> str:
    return f"offered={shlex.quote(' '.join(map(str, words)))}"

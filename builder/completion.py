"""Completion of a command line in bash and zsh: a script made from its parser."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Literal

Shell = Literal["bash", "zsh"]
Words = Callable[[], Sequence[str]]

# What zsh needs to take a function that is written for bash. A second compinit would forget others.
_ZSH = """\
(( $+functions[compdef] )) || { autoload -U +X compinit && compinit }
autoload -U +X bashcompinit && bashcompinit
"""

# Where nothing else completes python, `python -m` of the programs that have this is completed as
# well; zsh has completion of its own for python.
_PYTHON = """\
_trtllm_python() {
  [[ ${COMP_WORDS[1]} == -m ]] && ((COMP_CWORD > 2)) || return 0
  ! declare -F "_trtllm_${COMP_WORDS[2]}" >/dev/null || "_trtllm_${COMP_WORDS[2]}"
}
complete -p python >/dev/null 2>&1 || complete -o default -F _trtllm_python python python3
"""
# A shell has files where no word fits.
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


def script(
    shell: Shell, parser: argparse.ArgumentParser, command: str, known: Mapping[str, Words]
) -> str:
    """What a shell evaluates to complete a command, which is called `trtllm-` and its module.

    `known` gives the words of an argument by its name, beside the choices that it has itself.
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
    """A parser and those of its verbs, by the words that lead to it."""
    yield verb, parser
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for name, one in action.choices.items():
                yield from _parsers(one, f"{verb} {name}".strip())


def _case(pattern: str, then: str, more: str = "") -> str:
    return f"    {shlex.quote(pattern)}{more}) {then} ;;"


def _words(words: Sequence[str]) -> str:
    return f"offered={shlex.quote(' '.join(map(str, words)))}"

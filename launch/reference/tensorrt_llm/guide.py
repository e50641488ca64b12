"""Guided decoding: the grammar of a request, and the tokens that it allows next.

The release computes masks with `xgrammar` or `llguidance`, as `guided_decoding_backend` says
(TensorRT-LLM tensorrt_llm/_torch/pyexecutor/grammar_matcher.py@0fccc5b). Here llguidance computes
them for both, and takes what the backend would take: for xgrammar, EBNF and structural tags; for
llguidance, Lark and no structural tags.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from string import punctuation
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from llguidance import LLTokenizer

# A part of an answer in the words of xgrammar's structural tags: `type` and what belongs to it.
Format = Mapping[str, Any]

# Random weights would never end a text, a number or a list by themselves. After this many free
# choices in a row, or in all, a miniature takes the first of these that the grammar allows.
FREE_RUN, FREE_CHOICES = 6, 48
CLOSING = dict.fromkeys(f'"}}],<{punctuation}')
SHORT_TEXT = "[A-Za-z][A-Za-z ]{0,22}[a-z]"


@dataclass(slots=True, kw_only=True)
class GuidedDecodingParams:
    """What the text must follow: one of these."""

    json: Any = None
    regex: str | None = None
    grammar: str | None = None
    json_object: bool = False
    structural_tag: str | None = None


def format_of(params: GuidedDecodingParams, backend: str) -> Format:
    """The one guide of a request. Raises `ValueError` for none, several or one that is refused."""
    given = {name: value for name in params.__slots__ if (value := getattr(params, name))}
    if len(given) != 1:
        raise ValueError(f"guided decoding takes one guide, got {', '.join(given) or 'none'}")
    [(name, value)] = given.items()
    if name in ("json", "json_object"):
        schema = _document(name, value if name == "json" else {"type": "object"})
        return {"type": "json_schema", "json_schema": schema}
    if name == "regex":
        return {"type": "regex", "pattern": value}
    if name == "grammar":
        return {"type": "lark" if backend == "llguidance" else "grammar", "grammar": value}
    if backend == "llguidance":
        raise ValueError("structural_tag: the backend llguidance has no such guide")
    tag = _document(name, value)
    return tag["format"] if isinstance(tag.get("format"), Mapping) else _of_triggers(tag)


def _document(name: str, value: Any) -> Mapping[str, Any]:
    schema = getattr(value, "model_json_schema", None)
    try:
        found = schema() if schema else json.loads(value) if isinstance(value, str) else value
    except ValueError as fault:
        raise ValueError(f"{name}: is not JSON: {fault}") from None
    if not isinstance(found, Mapping):
        raise ValueError(f"{name}: is not a JSON object")
    return found


def _of_triggers(tag: Mapping[str, Any]) -> Format:
    """The older form of structural tags: `structures` with `begin`, `schema`, `end`; `triggers`."""
    try:
        tags = [
            {**row, "type": "tag", "content": {"type": "json_schema", "json_schema": row["schema"]}}
            for row in tag["structures"]
        ]
        return {"type": "triggered_tags", "triggers": tag["triggers"], "tags": tags}
    except (KeyError, TypeError):
        raise ValueError("structural_tag: needs format, or structures and triggers") from None


def grammar_of(form: Format, short: bool) -> str:
    """The grammar for llguidance. With `short`, free text inside of tags stays short.

    Raises `ValueError` for a part that is not known here or lacks what it needs.
    """
    parts: list[dict[str, str]] = []
    try:
        lark = f"start: {_expression(form, parts, short)}\n"
    except (KeyError, TypeError, IndexError, AttributeError) as fault:
        raise ValueError(f"structural_tag: a part is incomplete: {fault!r}") from None
    return json.dumps({"grammars": [{"lark_grammar": lark}, *parts]})


def _expression(form: Format, parts: list[dict[str, str]], short: bool) -> str:
    """A part in Lark; a grammar of its own joins `parts`."""

    def inner(child: Format) -> str:
        return _expression(child, parts, short)

    kind = form["type"]
    if kind == "const_string":
        return _literal(form["value"])
    if kind == "json_schema":
        schema = dict(form["json_schema"])
        if short:  # no blanks, and no properties that the schema does not name
            closed = {"additionalProperties": False} if "properties" in schema else {}
            schema = {**closed, **schema, "x-guidance": {"whitespace_flexible": False}}
        return f"%json {json.dumps(schema)}"
    if kind == "regex":
        return _regex(form["pattern"])
    if kind == "any_text":
        return _regex(r"(.|\n)*")
    if kind in ("grammar", "lark"):
        lark = form["grammar"]
        if kind == "grammar":
            from llguidance import grammar_from

            lark = grammar_from("ebnf", lark)
        parts.append({"name": f"part_{len(parts)}", "lark_grammar": lark})
        return f"@part_{len(parts) - 1}"
    if kind == "sequence":
        return " ".join(inner(child) for child in form["elements"])
    if kind == "or":
        return f"({' | '.join(inner(child) for child in form['elements'])})"
    if kind == "tag":
        return _tag(form, inner, short)
    if kind in ("triggered_tags", "tags_with_separator"):
        return _tags(form, [inner({**tag, "type": "tag"}) for tag in form["tags"]], short)
    raise ValueError(f"structural tag {kind}: not supported by the reference engine")


def _tag(form: Format, inner: Any, short: bool) -> str:
    end = form["end"] if isinstance(form["end"], str) else form["end"][0]
    if form["content"]["type"] != "any_text":
        content = inner(form["content"])
    else:
        content = _regex(SHORT_TEXT) if short else _text_without([end])
    return f"{_literal(form['begin'])} {content} {_literal(end)}"


def _tags(form: Format, tags: list[str], short: bool) -> str:
    """Text with tags in it, or tags alone with a separator between them."""
    if form["type"] == "tags_with_separator":
        text, between = "", _literal(form["separator"])
    else:
        text = f"({_regex(SHORT_TEXT)})?" if short else _text_without(form["triggers"])
        between = text
    tag = f"({' | '.join(tags)})"
    found = tag if form.get("stop_after_first") else f"{tag} ({between} {tag})* {text}"
    return f"{text} ({found}){'' if form.get('at_least_one') else '?'}"


def _text_without(marks: Sequence[str]) -> str:
    """Text in which nothing begins like one of the marks."""
    starts = [f"\\{mark[0]}" if mark[0] in "\\]^-[" else mark[0] for mark in marks if mark]
    return _regex(f"[^{''.join(dict.fromkeys(starts))}]*" if starts else r"(.|\n)*")


def _literal(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def _regex(pattern: str) -> str:
    return f"/{pattern.replace('/', chr(92) + '/').replace(chr(10), chr(92) + 'n')}/"


def tokens_of(tokenizer: Any, vocab_size: int, end_ids: frozenset[int]) -> LLTokenizer:
    """The tokens as llguidance reads them. Raises `ValueError` for a tokenizer that it cannot."""
    from llguidance import hf  # only guided requests wait for the library to be loaded

    size = max(vocab_size, len(tokenizer))
    return hf.from_tokenizer(tokenizer, n_vocab=size, eos_token=sorted(end_ids))


class Guide:
    """The grammar of one sequence, and how far the sequence has come in it.

    With `short`, it ends what random weights would not. Raises `ValueError` for a faulty grammar.
    """

    def __init__(self, tokens: LLTokenizer, grammar: str, short: bool) -> None:
        from llguidance import LLMatcher

        self._matcher = LLMatcher(tokens, grammar, log_level=0)
        self._ends = list(tokens.eos_tokens)
        self._closing = list[int]()
        if short:
            ids = [tokens.tokenize_str(character)[-1] for character in CLOSING]
            self._closing = [*self._ends, *ids]
        self._run = self._choices = 0
        self._is_over = False
        self._check()

    def _check(self) -> None:
        if self._matcher.is_error():
            # What follows is the grammar that was made here of the request's guide.
            text, own, _ = self._matcher.get_error().strip().partition("\n   1 | start: ")
            raise ValueError(f"guided decoding: {text.partition('): ')[2] if own else text}")

    def mask(self, logits: torch.Tensor) -> torch.Tensor:
        """`logits` `[vocab_size]` with minus infinity for tokens that the grammar does not allow.

        They stay as they are after the end of the grammar, and where none of them would be left.
        """
        if self._is_over:
            return logits
        rows = torch.frombuffer(bytearray(self._matcher.compute_bitmask()), dtype=torch.uint8)
        self._check()
        bits = rows.unsqueeze(1) >> torch.arange(8, dtype=torch.uint8) & 1
        allowed = bits.flatten()[: len(logits)].bool() & logits.isfinite()
        count = int(allowed.sum())
        if count == 1:
            self._run = 0
        elif count and self._closing:
            allowed = self._closed(allowed)
        return logits.masked_fill(~allowed, float("-inf")) if count else logits

    def _closed(self, allowed: torch.Tensor) -> torch.Tensor:
        """The tokens that are allowed, or after too many free choices the first closing one."""
        self._run, self._choices = self._run + 1, self._choices + 1
        if self._run <= FREE_RUN and self._choices <= FREE_CHOICES:
            return allowed
        token = next((token for token in self._closing if allowed[token]), None)
        if token is None:
            return allowed
        self._run = 0
        return torch.zeros_like(allowed).index_fill(0, torch.tensor(token), True)

    def accept(self, token: int) -> None:
        """Go on by a token that was chosen under the mask."""
        if not self._is_over:
            self._is_over = token in self._ends
            self._matcher.consume_token(token)
            self._check()

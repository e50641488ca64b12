"""Reads texts with the engine's own tool parsers: `{"parsers": [...], "texts": [...]}` on stdin.

Runs in the engine's environment. Prints, for each parser, whether it finds a call in each text.
"""

from __future__ import annotations

import json
import re
import sys
from typing import Any

from vllm.entrypoints.openai.chat_completion.protocol import (
    ChatCompletionRequest,
)
from vllm.tool_parsers import ToolParserManager


class Tokenizer:
    """A tokenizer with a token for each tag of the texts; parsers want their ids to exist."""

    def __init__(self, texts: list[str]) -> None:
        tags = ["<|python_tag|>", *re.findall(r"<[^<>\s]+>", "".join(texts))]
        self._ids = {tag: number for number, tag in enumerate(dict.fromkeys(tags), 1)}

    def get_vocab(self) -> dict[str, int]:
        return self._ids

    def encode(self, text: str, **_: Any) -> list[int]:
        return list(map(ord, text))

    def decode(self, ids: list[int], **_: Any) -> str:
        return "".join(map(chr, ids))


def main() -> None:
    given = json.load(sys.stdin)
    request = ChatCompletionRequest(model="m", messages=[], tools=given["tools"])
    texts, found = given["texts"], {}
    for name in given["parsers"]:
        parser = ToolParserManager.get_tool_parser(name)(Tokenizer(texts), request.tools)
        calls = [parser.extract_tool_calls(text, request).tool_calls for text in texts]
        found[name] = list(map(bool, calls))
    print(json.dumps(found))


if __name__ == "__main__":
    main()

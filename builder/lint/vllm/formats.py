"""How commands and files of vLLM are recognised: `formats/vllm.yaml`."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache

from ...documents import DATA
from ...facts import data_file
from ...schema import Text

FORMAT = DATA / "formats" / "vllm.yaml"
ENGINE = "vllm"
ENGINE_FILE = "model.json"  # of Triton's backend


@dataclass(frozen=True, slots=True)
class Formats:
    """The words of the file; its comments say what each list is."""

    source: Text
    program: Text
    subcommand: Text
    modules: tuple[Text, ...]
    workers: tuple[Text, ...]
    images: tuple[Text, ...]
    extended_images: tuple[Text, ...]
    bare_images: tuple[Text, ...]
    publishers: tuple[Text, ...]
    mirrors: tuple[Text, ...]
    extensions: tuple[Text, ...]
    flag_lists: tuple[Text, ...]
    other_programs: tuple[Text, ...]
    model_commands: tuple[Text, ...]
    handed_on_beside: Text
    handed_on_by: tuple[Text, ...]
    option_holders: tuple[Text, ...]
    asked_gpus: dict[str, Text]
    roles: tuple[Text, ...]
    minimum: tuple[Text, ...]
    signature: tuple[Text, ...]
    marks: tuple[Text, ...]
    converted: tuple[Text, ...]
    json_flags: tuple[Text, ...]
    python_classes: tuple[Text, ...]
    python_options: tuple[Text, ...]
    wrapper: Text
    wrapped_in: dict[str, Text]
    wrapped_beside: Text
    wrapped_not: Text
    request_class: Text
    request_names: tuple[Text, ...]
    request_words: dict[str, Text]
    python_numbers: dict[str, Text]
    brought_by: dict[str, Text]
    lifted: dict[str, Text]
    former: dict[str, Text]
    former_values: tuple[Text, ...]
    former_variables: dict[str, Text]
    foreign: dict[str, Text]


@cache
def formats() -> Formats:
    return data_file.load(FORMAT, Formats)


@cache
def image_pattern() -> re.Pattern[str]:
    """An image of the server; `extended` where it is one that is built on it."""
    own, extended = (
        "|".join(map(re.escape, sorted(rows, key=len, reverse=True)))
        for rows in (formats().images, formats().extended_images)
    )
    return re.compile(
        rf"(?:^|(?<=[/\s=\"'#]))(?:(?P<own>{own})|(?P<extended>{extended}))"
        r"(?::(?P<tag>[\w.${}:-]+))?(?:@sha256:[0-9a-f]+)?(?=$|[\s\"',])"
    )

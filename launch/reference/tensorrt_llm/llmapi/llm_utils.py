"""How the options of an option file are merged over those given otherwise."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .. import options


def update_llm_args_with_extra_dict(
    llm_args: Mapping[str, Any],
    llm_args_dict: Mapping[str, Any],
    extra_llm_api_options: str | None = None,
) -> dict[str, Any]:
    """`llm_args` with the options of `llm_args_dict` merged over them.

    A key of the option file replaces the whole value, except for the keys that the release merges
    one level deeper. `extra_llm_api_options` is the file's name, for the log only.
    """
    deep = options.release().deep_merged_keys
    merged = {**llm_args, **llm_args_dict}
    for key in deep:
        below, above = llm_args.get(key), llm_args_dict.get(key)
        if isinstance(below, Mapping) and isinstance(above, Mapping):
            merged[key] = {**below, **above}
    return merged

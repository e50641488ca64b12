from typing import Any


def update_llm_args_with_extra_dict(
    llm_args: dict[str, Any], extra: dict[str, Any]
) -> dict[str, Any]:
    return {**llm_args, **extra}

"""Where the engine has the merging of option files."""

from ..options import update_llm_args_with_extra_dict

__all__ = ["update_llm_args_with_extra_dict"]

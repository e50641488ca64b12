"""Environment variables that a deployment or a site sets for servers, and those that it may not."""

from __future__ import annotations

import re
from typing import Annotated

from .strict import Before, Bounds

# What a variable, an argument and a file's name can hold.
NoNul = Annotated[str, Bounds(pattern=r"^[^\x00]*$")]
Variable = Annotated[str, Bounds(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")]
# A variable's value is text; a whole number without quotes is taken for it.
NUMBERS_AS_TEXT = Before(lambda value: str(value) if type(value) is int else value)

# Variables by which a loader, a shell or an interpreter takes up code that no bundle shows.
_CODE = re.compile(
    r"PATH|LD_\w+|DYLD_\w+|GCONV_PATH|GLIBC_TUNABLES|BASH_ENV|BASH_FUNC_.*|ENV|BASHOPTS|SHELLOPTS|IFS"
    r"|CDPATH|GLOBIGNORE|PS[0-4]|PROMPT_COMMAND|PYTHON(PATH|HOME|STARTUP|USERBASE|INSPECT|BREAKPOINT"
    r"|WARNINGS|EXECUTABLE|PLATLIBDIR|PYCACHEPREFIX)|PERL5(OPT|LIB|DB)|RUBY(OPT|LIB)|NODE_OPTIONS|JAVA_TOOL_OPTIONS"
    r"|BASH_LOADABLES_PATH|_JAVA_OPTIONS|JDK_JAVA_OPTIONS|CC|CXX|NVCC_(PREPEND|APPEND)_FLAGS"
    r"|CUDA_INJECTION(32|64)_PATH|NSYS_\w*PATH|OPAL_PREFIX|UCX_MODULE_DIR|LOCPATH|SLURM_CONF"
    r"|(OMPI|PMIX|PRTE|OPAL)_MCA_(plm_\w+|\w+_agent|\w*component_path)|HYDRA_LAUNCHER(_EXEC)?"
    r"|GIT_SSH(_COMMAND)?|GIT_EXEC_PATH|(SSH|GIT|SUDO)_ASKPASS"
)


def refuse_code(value: dict[str, str]) -> dict[str, str]:
    """Variables of servers. Raises `ValueError` for one by which other code is loaded."""
    if taken := sorted(name for name in value if _CODE.fullmatch(name)):
        raise ValueError(
            f"{taken[0]} decides which programs and libraries run; "
            "set it where the server runs, or in the image"
        )
    return value

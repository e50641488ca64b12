"""A bundle in, a running server and the evidence it leaves out."""

import sys

# httpx imports its own command line where click is installed, which takes longer than all the rest
# of it. Python takes this entry for a module that is not there, and httpx then goes without.
sys.modules.setdefault("httpx._main", None)  # type: ignore[arg-type]

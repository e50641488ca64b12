"""Client credentials: the key of a server or of restricted APIs, and TLS certificates for gRPC."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from builder.diagnostics import Diagnostic
from builder.errors import BadInput
from builder.files import read_bytes

# The name that a bundle gives its key. Triton expects it with a prefix over gRPC.
HEADER = "api-key"
GRPC_HEADER = f"triton-grpc-protocol-{HEADER}"
# How an error of HTTP begins that tells of a key which is not there, or is another one.
_WANTS_KEY = re.compile(r"(?:^|: )40[13]:|gives 40[13]\b")


def remedy(error: str) -> str:
    """What to do about an answer of a server that asks for a key; empty for any other."""
    return "give the server's key in a file with --key-file" if _WANTS_KEY.search(error) else ""


@dataclass(frozen=True, slots=True)
class ClientFiles:
    """Files of a client as the user names them; secrets are in them, never in arguments."""

    key_file: Path | None = None
    tls_ca: Path | None = None
    tls_certificate: Path | None = None
    tls_key: Path | None = None


@dataclass(frozen=True, slots=True)
class Access:
    """What a client shows. Without `encrypted`, gRPC is plain; HTTP of Triton always is.

    Without `root` a server's certificate is checked by what gRPC trusts by itself.
    """

    key: str | None = field(default=None, repr=False)
    encrypted: bool = False
    root: bytes | None = field(default=None, repr=False)
    certificate: bytes | None = field(default=None, repr=False)
    certificate_key: bytes | None = field(default=None, repr=False)
    server_name: str | None = None

    @property
    def http_headers(self) -> dict[str, str]:
        """For Triton, and as servers of OpenAI's API and proxies want it."""
        return {HEADER: self.key, "Authorization": f"Bearer {self.key}"} if self.key else {}

    @property
    def grpc_metadata(self) -> tuple[tuple[str, str], ...]:
        return ((GRPC_HEADER, self.key),) if self.key else ()

    def channel(self, address: str, grpc: Any) -> Any:
        """A channel of `grpc`, which is the package of that name or its `aio`."""
        if not self.encrypted:
            return grpc.insecure_channel(address)
        from grpc import ssl_channel_credentials  # type: ignore[import-untyped]

        credentials = ssl_channel_credentials(self.root, self.certificate_key, self.certificate)
        name = self.server_name
        options = [("grpc.ssl_target_name_override", name)] if name else []
        return grpc.secure_channel(address, credentials, options=options)


def read(environment: Mapping[str, str], files: ClientFiles, server_name: str | None) -> Access:
    """The access to a server whose start script has this environment.

    The server's own key file and certificate serve where they can be read and no others are named.
    Raises `BadInput` for a named file that cannot be read.
    """
    certificate = environment.get("SERVE_TLS_CERTIFICATE")
    key = _read(files.key_file, "--key-file") or _own(environment.get("SERVE_KEY_FILE"))
    lines = key.decode("ascii", errors="replace").splitlines() if key else []
    return Access(
        key=lines[0] if lines else None,
        encrypted=bool(certificate or files.tls_ca or files.tls_certificate or server_name),
        root=_read(files.tls_ca, "--tls-ca") or _own(certificate),
        certificate=_read(files.tls_certificate, "--tls-certificate"),
        certificate_key=_read(files.tls_key, "--tls-key"),
        server_name=server_name,
    )


def _read(path: Path | None, option: str) -> bytes | None:
    if path is None:
        return None
    try:
        return read_bytes(path)
    except BadInput as error:
        [fault] = error.diagnostics
        raise BadInput(Diagnostic(option, f"{path} {fault.message}", fault.fix)) from None


def _own(path: str | None) -> bytes | None:
    return read_bytes(Path(path)) if path and os.access(path, os.R_OK) else None

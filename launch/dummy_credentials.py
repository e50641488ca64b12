"""Dummy credentials of a rehearsal: the key and certificates that a deployment keeps elsewhere."""

from __future__ import annotations

import secrets
import subprocess
from dataclasses import replace
from pathlib import Path

from builder.diagnostics import Diagnostic
from builder.errors import NotReady

from .access import ClientFiles
from .target import Target

DAYS = "2"


def with_dummy_credentials(target: Target, folder: Path) -> Target:
    """The target with a new key, and new certificates if it uses any, in `folder`.

    Raises `NotReady` if certificates are needed and openssl is not there or fails.
    """
    variables, files = {}, ClientFiles()
    if "SERVE_KEY_FILE" in target.environment:
        key_file = folder / "key"
        key_file.touch(mode=0o600)
        key_file.write_text(secrets.token_hex(32) + "\n")
        variables["SERVE_KEY_FILE"] = str(key_file)
    if "SERVE_TLS_CERTIFICATE" in target.environment:
        ca = _authority(folder)
        certificate, key = _certificate(folder, "server", target.host)
        variables |= {"SERVE_TLS_CERTIFICATE": str(certificate), "SERVE_TLS_KEY": str(key)}
        files = ClientFiles(tls_ca=ca)
    if "SERVE_TLS_CLIENT_CA" in target.environment:
        variables["SERVE_TLS_CLIENT_CA"] = str(folder / "ca.pem")
        certificate, key = _certificate(folder, "client", target.host)
        files = replace(files, tls_certificate=certificate, tls_key=key)
    return replace(target.with_environment(**variables), client_files=files)


def _authority(folder: Path) -> Path:
    _openssl(
        *("req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", DAYS),
        *("-subj", "/CN=rehearsal", "-keyout", folder / "ca.key", "-out", folder / "ca.pem"),
    )
    return folder / "ca.pem"


def _certificate(folder: Path, name: str, host: str) -> tuple[Path, Path]:
    """A certificate for a host, and its key."""
    key, request, certificate = (folder / f"{name}.{end}" for end in ("key", "csr", "pem"))
    kind = "IP" if host.replace(".", "").isdecimal() or ":" in host else "DNS"
    names = folder / f"{name}.names"
    names.write_text(f"subjectAltName={kind}:{host}\n")
    _openssl(
        *("req", "-newkey", "rsa:2048", "-nodes", "-subj", f"/CN={name}"),
        *("-keyout", key, "-out", request),
    )
    _openssl(
        *("x509", "-req", "-in", request, "-days", DAYS, "-extfile", names),
        *("-CA", folder / "ca.pem", "-CAkey", folder / "ca.key", "-CAcreateserial"),
        *("-out", certificate),
    )
    return certificate, key


def _openssl(*arguments: str | Path) -> None:
    remedy = "install openssl: the certificates of a rehearsal are made with it"
    try:
        subprocess.run(
            ["openssl", *map(str, arguments)], check=True, capture_output=True, umask=0o077
        )
    except FileNotFoundError:
        raise NotReady(Diagnostic("openssl", "is not installed", remedy)) from None
    except subprocess.CalledProcessError as error:
        words = error.stderr.decode(errors="replace").strip().splitlines()[-1:]
        raise NotReady(Diagnostic("openssl", f"fails: {''.join(words)}", remedy)) from None

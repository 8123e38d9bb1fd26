"""The certificate of a node, and what is wrong with it."""

from __future__ import annotations

import ssl
from typing import TYPE_CHECKING

from headrace.node.options import NodeError

if TYPE_CHECKING:
    from pathlib import Path

HANDSHAKE_S_MAX = 15
"""How long a client may take for the handshake of TLS."""


def server_context(cert: Path, key: Path) -> ssl.SSLContext:
    """What a server of TLS 1.2 and later needs; `NodeError` names the file that it cannot be made of, and why."""
    for what, path in (("certificate", cert), ("key", key)):
        try:
            path.read_bytes()
        except OSError as error:
            raise NodeError(f"the {what} {path} cannot be read: {error.strerror or error}") from error
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(cafile=cert)
    except ssl.SSLError as error:
        raise NodeError(f"{cert} is not a certificate in PEM form (--tls-cert)") from error
    asked = False

    def no_password() -> str:  # without it, OpenSSL would ask the terminal
        nonlocal asked
        asked = True
        return ""

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        context.load_cert_chain(cert, key, password=no_password)
    except (OSError, ValueError) as error:  # an SSLError is an OSError
        raise NodeError(_why(cert, key, error, encrypted=asked)) from error
    return context


def _why(cert: Path, key: Path, error: Exception, *, encrypted: bool) -> str:
    reason = getattr(error, "reason", None) or ""
    if encrypted:
        return f"the key {key} is encrypted, and a node has no password for it: openssl pkey -in {key} decrypts it"
    if "MISMATCH" in reason:  # KEY_VALUES_MISMATCH, KEY_TYPE_MISMATCH
        return f"the key {key} does not belong to the certificate {cert}"
    if "PEM" in reason or "NO_START_LINE" in reason or not reason:
        return f"{key} is not a private key in PEM form (--tls-key)"
    return f"the certificate {cert} and the key {key} cannot be used: {reason.lower().replace('_', ' ')}"

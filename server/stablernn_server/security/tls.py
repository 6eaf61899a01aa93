"""The certificate and the key that https is served with, read before anything else is done."""

from __future__ import annotations

import ssl

from stablernn_server.errors import SettingsError
from stablernn_server.settings import Settings


def tls_context(settings: Settings) -> ssl.SSLContext | None:
    """What TLS is spoken with; None where the settings name no files.

    Raises:
        SettingsError: If one of the files is missing, cannot be read, or does not go with the other.
    """
    certificate, key = settings.tls_cert_file, settings.tls_key_file
    if certificate is None and key is None:
        return None
    if certificate is None or key is None:
        given, missing = ("tls_key_file", "tls_cert_file") if certificate is None else ("tls_cert_file", "tls_key_file")
        raise SettingsError(f"Settings: {given} is given without {missing}; https needs both, or leave both out.")
    for name, path in (("certificate", certificate), ("key", key)):
        try:
            path.read_bytes()
        except OSError as error:
            raise SettingsError(f"The TLS {name} {path} cannot be read: {error.strerror}.") from error
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.set_alpn_protocols(["http/1.1"])
    # Clients whose threads read and write at the same time, such as those of `websockets.sync`, can wait for ever when
    # a session ticket comes between: it is read, and nothing follows. Connections are kept, so that few resume one.
    context.num_tickets = 0
    try:
        # Without a password of its own, a key that has one would make OpenSSL ask on the terminal.
        context.load_cert_chain(certificate, key, password="")
    except ssl.SSLError as error:
        why = f" ({error.reason.replace('_', ' ').lower()})" if error.reason else ""
        raise SettingsError(
            f"The TLS certificate {certificate} and the key {key} cannot be used{why}. Give a certificate chain and "
            "its own key, both PEM, the key without a password."
        ) from error
    return context

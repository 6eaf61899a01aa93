"""Certificate and key for https, read before anything else is done."""

from __future__ import annotations

import ssl

from stablernn_server.errors import SettingsError
from stablernn_server.settings import Settings


def tls_context(settings: Settings) -> ssl.SSLContext | None:
    """Return the TLS context of the certificate and key that the settings name; None if they name none.

    Raises:
        SettingsError: If one of the files is missing, cannot be read, or does not belong to the other.
    """
    certificate, key = settings.tls_cert_file, settings.tls_key_file
    if certificate is None and key is None:
        return None
    if certificate is None or key is None:
        fields = ("tls_key_file", "tls_cert_file") if certificate is None else ("tls_cert_file", "tls_key_file")
        raise SettingsError(f"Settings: {fields[0]} is set without {fields[1]}; https needs both, or leave both out.")
    # OpenSSL's errors do not say which of the two files it could not read.
    for name, path in (("certificate", certificate), ("key", key)):
        try:
            path.read_bytes()
        except OSError as error:
            raise SettingsError(f"The TLS {name} {path} cannot be read: {error.strerror}.") from error
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.set_alpn_protocols(["http/1.1"])
    # Clients whose threads read and write at the same time, such as those of `websockets.sync`, can block forever on a
    # session ticket: it is read, and nothing follows. Connections are kept alive, so that few would resume a session.
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

"""Health check of a container, `python -m stablernn_cli.healthcheck`: exit code 0 if its server is ready, else 1.

It connects to the port of ``STABLERNN_PORT`` directly, without the proxy of the environment, and by https if
``STABLERNN_TLS_CERT_FILE`` is set. It loads only the standard library, since it runs every few seconds.
"""

from __future__ import annotations

import http.client
import os
import sys

# Below the 5 s that the HEALTHCHECK of the image allows.
_TIMEOUT_SECONDS = 4.0


def is_ready() -> bool:
    """Return True if the server on this machine answers that it is ready."""
    port = int(os.environ.get("STABLERNN_PORT") or 8080)
    connection = _connection(port)
    try:
        connection.request("GET", "/v2/health/ready")
        return connection.getresponse().status == http.client.OK
    except (OSError, http.client.HTTPException) as error:
        print(f"No answer on port {port}: {error}.", file=sys.stderr)
        return False
    finally:
        connection.close()


def _connection(port: int) -> http.client.HTTPConnection:
    if not os.environ.get("STABLERNN_TLS_CERT_FILE"):
        return http.client.HTTPConnection("127.0.0.1", port, timeout=_TIMEOUT_SECONDS)
    import ssl

    context = ssl.create_default_context()
    # The certificate is for the name that clients use, not for this address.
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return http.client.HTTPSConnection("127.0.0.1", port, timeout=_TIMEOUT_SECONDS, context=context)


if __name__ == "__main__":
    sys.exit(0 if is_ready() else 1)

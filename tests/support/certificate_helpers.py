"""Certificates for servers of the tests."""

from __future__ import annotations

import subprocess
from pathlib import Path


def make_certificate(folder: Path, name: str) -> None:
    """Write NAME.pem, a certificate for 127.0.0.1 that signs itself, and NAME.key into a folder."""
    subprocess.run(
        [
            *("openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"),
            *("-keyout", str(folder / f"{name}.key"), "-out", str(folder / f"{name}.pem"), "-days", "2"),
            *("-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1"),
        ],
        check=True,
        capture_output=True,
    )

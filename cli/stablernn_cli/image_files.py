"""The texts of a build context that `stablernn dockerize` writes: Dockerfile, .dockerignore, compose.yaml."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

USER = 10001
"""User and group of the process in the image; nobody needs to know them by a name."""
PORT = 8080
SECRETS = "/run/secrets"
STOP_SECONDS = 15
"""What a container has to stop in: the server drains for 8 s and gives a body that arrives another 2 s."""
MEMORY = "2g"
CPUS = "2"
PROCESSES = 512
ENVIRONMENT = {
    "STABLERNN_TOKENS_FILE": f"{SECRETS}/tokens",
    "STABLERNN_STATE_KEY_FILE": f"{SECRETS}/state_key",
}
HEALTHCHECK = ("python", "-m", "stablernn_cli.healthcheck")
_NVIDIA = " \\\n    NVIDIA_VISIBLE_DEVICES=all \\\n    NVIDIA_DRIVER_CAPABILITIES=compute,utility"
HEALTH_TIMES = {"interval": "10s", "timeout": "5s", "start_period": "30s", "retries": 3}


@dataclass(frozen=True)
class Image:
    """What is built.

    Attributes:
        name: Of the image.
        base: Image with Python, pip and venv that it is made from.
        gpu: Whether it holds the CUDA build of ONNX Runtime.
        models: What it serves, as references.
        digests: Digest of each version, by ``NAME:VERSION``.
        wheel: File name of the wheel in the context.
        user: ``UID:GID`` that a container runs as, so that it may read the secrets.
    """

    name: str
    base: str
    gpu: bool
    models: Sequence[str]
    digests: Mapping[str, str]
    wheel: str
    user: str


def dockerfile(image: Image) -> str:
    """The Dockerfile: an environment made in one stage, copied beside the models in the next."""
    held = " ".join(f"{ref}@{digest}" for ref, digest in image.digests.items())
    nvidia = (
        ' \\\n    NVIDIA_VISIBLE_DEVICES=all \\\n    NVIDIA_DRIVER_CAPABILITIES="compute,utility"' if image.gpu else ""
    )
    return f"""\
# Written by `stablernn dockerize`, which writes it anew when it is run again.
ARG BASE={image.base}

FROM ${{BASE}} AS builder
WORKDIR /context
COPY requirements.txt {image.wheel} ./
# The environment holds no pip: it is installed into from outside, and copied as it is.
RUN python3 -m venv --without-pip /opt/stablernn \\
 && python3 -m pip --python /opt/stablernn/bin/python install --no-cache-dir --require-hashes \\
    --requirement requirements.txt \\
 && python3 -m pip --python /opt/stablernn/bin/python install --no-cache-dir --no-deps {image.wheel}

FROM ${{BASE}}
COPY --from=builder /opt/stablernn /opt/stablernn
COPY registry /registry
LABEL stablernn.nn.models="{held}"
# Without the line about telemetry, ONNX Runtime sends what it counts to its makers.
ENV PATH="/opt/stablernn/bin:$PATH" \\
    PYTHONUNBUFFERED=1 \\
    ORT_DISABLE_TELEMETRY=1 \\
    STABLERNN_REGISTRY=/registry \\
    STABLERNN_MODELS="{",".join(image.models)}" \\
    STABLERNN_HOST=0.0.0.0 \\
    STABLERNN_PORT={PORT}{nvidia}
USER {USER}:{USER}
EXPOSE {PORT}
STOPSIGNAL SIGTERM
# Follows STABLERNN_PORT; `serve --port` alone would not tell it.
HEALTHCHECK --interval={HEALTH_TIMES["interval"]} --timeout={HEALTH_TIMES["timeout"]} \\
    --start-period={HEALTH_TIMES["start_period"]} --retries={HEALTH_TIMES["retries"]} \\
    CMD {json.dumps(HEALTHCHECK)}
ENTRYPOINT ["stablernn"]
CMD ["serve"]
"""


def dockerignore(image: Image) -> str:
    """What the builder is sent: never the secrets."""
    return "\n".join(
        ["# Only what the Dockerfile copies.", "*", "!requirements.txt", f"!{image.wheel}", "!registry", ""]
    )


def compose(image: Image) -> str:
    """The compose file: one service behind tokens, with nothing to write to but /tmp."""
    gpu = """
        reservations:
          devices:
            - driver: nvidia
              count: 1
              capabilities: [gpu]"""
    return f"""\
# Written by `stablernn dockerize`. Run it with: docker compose up --build --detach --wait
services:
  server:
    build: .
    image: {json.dumps(image.name)}
    # Compose hands the secrets in with the owner and the mode they have here, and nobody else may read them.
    user: {json.dumps(image.user)}
    ports:
      # Of this machine alone. PUBLISH={PORT} opens it to others; the tokens then travel unencrypted, unless a proxy in
      # front of it or STABLERNN_TLS_CERT_FILE and STABLERNN_TLS_KEY_FILE see to that.
      - "${{PUBLISH:-127.0.0.1:{PORT}}}:{PORT}"
    environment:
{_lines(ENVIRONMENT)}
    secrets:
      - tokens
      - state_key
    read_only: true
    tmpfs:
      - /tmp:mode=1777,size=64m
    cap_drop:
      - ALL
    security_opt:
      - no-new-privileges:true
    healthcheck:
      test: {json.dumps(["CMD", *HEALTHCHECK])}
{_lines(HEALTH_TIMES)}
    restart: unless-stopped
    stop_grace_period: {STOP_SECONDS}s
    deploy:
      resources:
        limits:
          cpus: "{CPUS}"
          memory: {MEMORY}
          pids: {PROCESSES}{gpu if image.gpu else ""}

secrets:
  tokens:
    file: ./secrets/tokens
  state_key:
    file: ./secrets/state_key
"""


def _lines(values: Mapping[str, object]) -> str:
    return "\n".join(f"      {name}: {value}" for name, value in values.items())

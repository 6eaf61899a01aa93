"""Text files of a build context that `stablernn dockerize` writes: Dockerfile, .dockerignore, compose.yaml."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

USER = 10001
"""User and group of the process in the image, without a name in its /etc/passwd."""
PORT = 8080
SECRETS = "/run/secrets"
STOP_SECONDS = 15
"""Time for a container to stop: the server drains for 8 s and grants 2 s more to a body that is arriving."""
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
    """An image to build.

    Attributes:
        name: Name of the image.
        base: Base image, with Python, pip and venv.
        gpu: True if it has the CUDA build of ONNX Runtime.
        models: References of the models that it serves.
        digests: Digest of each version, by ``NAME:VERSION``.
        wheel: File name of the wheel in the context.
        user: ``UID:GID`` that a container runs as, so that it can read the secrets.
    """

    name: str
    base: str
    gpu: bool
    models: Sequence[str]
    digests: Mapping[str, str]
    wheel: str
    user: str


def dockerfile(image: Image) -> str:
    """Return the Dockerfile: one stage installs the environment, the next copies it and the models."""
    label = " ".join(f"{ref}@{digest}" for ref, digest in image.digests.items())
    nvidia = (
        ' \\\n    NVIDIA_VISIBLE_DEVICES=all \\\n    NVIDIA_DRIVER_CAPABILITIES="compute,utility"' if image.gpu else ""
    )
    return f"""\
# Written by `stablernn dockerize`, which overwrites it when it is run again.
ARG BASE={image.base}

FROM ${{BASE}} AS builder
WORKDIR /context
COPY requirements.txt {image.wheel} ./
# The environment has no pip of its own: the builder's installs into it, and the whole folder is copied.
RUN python3 -m venv --without-pip /opt/stablernn \\
 && python3 -m pip --python /opt/stablernn/bin/python install --no-cache-dir --require-hashes \\
    --requirement requirements.txt \\
 && python3 -m pip --python /opt/stablernn/bin/python install --no-cache-dir --no-deps {image.wheel}

FROM ${{BASE}}
COPY --from=builder /opt/stablernn /opt/stablernn
COPY registry /registry
LABEL stablernn.nn.models="{label}"
# Without ORT_DISABLE_TELEMETRY, ONNX Runtime sends usage data to its makers.
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
# Follows STABLERNN_PORT; it does not know of `serve --port`.
HEALTHCHECK --interval={HEALTH_TIMES["interval"]} --timeout={HEALTH_TIMES["timeout"]} \\
    --start-period={HEALTH_TIMES["start_period"]} --retries={HEALTH_TIMES["retries"]} \\
    CMD {json.dumps(HEALTHCHECK)}
ENTRYPOINT ["stablernn"]
CMD ["serve"]
"""


def dockerignore(image: Image) -> str:
    """Return the .dockerignore: the builder gets what the Dockerfile copies, never the secrets."""
    return "\n".join(
        ["# Only what the Dockerfile copies.", "*", "!requirements.txt", f"!{image.wheel}", "!registry", ""]
    )


def compose(image: Image) -> str:
    """Return the compose file: one service that requires tokens and can write to /tmp only."""
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
    # Compose mounts the secrets with the owner and the mode that they have here: readable by their owner only.
    user: {json.dumps(image.user)}
    ports:
      # Reachable from this machine only. PUBLISH={PORT} opens it to others; tokens then travel unencrypted, unless a
      # proxy in front of it or STABLERNN_TLS_CERT_FILE and STABLERNN_TLS_KEY_FILE encrypt them.
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

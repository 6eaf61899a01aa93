# The serving image: registry, ONNX Runtime and HTTP; no torch, no compiler. docs/guides/serving.md says how to run it.
#
#   docker build --tag stablernn .                                  for the CPU
#   docker build --tag stablernn:gpu --build-arg VARIANT=gpu .      for NVIDIA GPUs (brings CUDA 13 and cuDNN 9 itself)

ARG BASE=python:3.11-slim

FROM ${BASE} AS builder
ARG VARIANT=cpu
WORKDIR /src
COPY requirements requirements
# The environment holds no pip: it is installed into from outside, and copied as it is.
RUN python3 -m venv --without-pip /opt/stablernn \
 && python3 -m pip --python /opt/stablernn/bin/python install --no-cache-dir --require-hashes \
    --requirement "requirements/serve-${VARIANT}.txt"
COPY pyproject.toml README.md LICENSE ./
COPY tools/siblings.py tools/siblings.py
COPY stablernn stablernn
COPY registry registry
COPY client client
COPY runtime runtime
COPY server server
COPY cli cli
RUN STABLERNN_PINS=1 python3 -m pip wheel --no-cache-dir --no-deps --wheel-dir /wheels \
    . ./client ./registry ./runtime ./server \
 && python3 -m pip --python /opt/stablernn/bin/python install --no-cache-dir --no-deps /wheels/*.whl

FROM ${BASE}
COPY --from=builder /opt/stablernn /opt/stablernn
RUN mkdir /registry \
 && chown 10001:10001 /registry
# Without the line about telemetry, ONNX Runtime sends what it counts to its makers.
ENV PATH="/opt/stablernn/bin:$PATH" \
    PYTHONUNBUFFERED=1 \
    ORT_DISABLE_TELEMETRY=1 \
    STABLERNN_REGISTRY=/registry \
    STABLERNN_HOST=0.0.0.0 \
    STABLERNN_PORT=8080 \
    NVIDIA_VISIBLE_DEVICES=all \
    NVIDIA_DRIVER_CAPABILITIES=compute,utility
USER 10001:10001
VOLUME /registry
EXPOSE 8080
STOPSIGNAL SIGTERM
# Follows STABLERNN_PORT; `serve --port` alone would not tell it.
HEALTHCHECK --interval=10s --timeout=5s --start-period=30s --retries=3 \
    CMD ["python", "-m", "stablernn_cli.healthcheck"]
ENTRYPOINT ["stablernn"]
CMD ["serve"]

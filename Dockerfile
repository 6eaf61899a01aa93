# The serving image: registry, ONNX Runtime and HTTP; no torch, no compiler.
#
#   docker build -t stablernn .                                  for the CPU
#   docker build -t stablernn:gpu --build-arg VARIANT=gpu .      for NVIDIA GPUs (brings CUDA 13 and cuDNN 9 itself)
#   docker run -p 8080:8080 -v "$PWD/registry:/registry:ro" stablernn serve --model digits@production

FROM python:3.11-slim AS builder
ARG VARIANT=cpu
WORKDIR /src
COPY requirements requirements
# The environment holds no pip: it is installed into from outside, and copied as it is.
RUN python -m venv --without-pip /opt/stablernn \
 && pip --python /opt/stablernn/bin/python install --no-cache-dir --requirement "requirements/serve-${VARIANT}.txt"
COPY pyproject.toml README.md LICENSE ./
COPY stablernn stablernn
COPY registry registry
COPY server server
COPY cli cli
RUN pip wheel --no-cache-dir --no-deps --wheel-dir /wheels . \
 && pip --python /opt/stablernn/bin/python install --no-cache-dir --no-deps /wheels/*.whl

FROM python:3.11-slim
COPY --from=builder /opt/stablernn /opt/stablernn
RUN useradd --system --uid 10001 --no-create-home stablernn \
 && mkdir /registry \
 && chown stablernn /registry
ENV PATH="/opt/stablernn/bin:$PATH" \
    PYTHONUNBUFFERED=1 \
    STABLERNN_REGISTRY=/registry \
    STABLERNN_HOST=0.0.0.0 \
    STABLERNN_PORT=8080 \
    NVIDIA_VISIBLE_DEVICES=all \
    NVIDIA_DRIVER_CAPABILITIES=compute,utility
USER 10001
VOLUME /registry
EXPOSE 8080
# Follows STABLERNN_PORT; `serve --port` alone would not tell it.
HEALTHCHECK --interval=10s --timeout=5s --start-period=30s --retries=3 \
    CMD ["python", "-c", "import os, urllib.request as r; r.urlopen(f'http://127.0.0.1:{os.environ[\"STABLERNN_PORT\"]}/v2/health/ready', timeout=4)"]
ENTRYPOINT ["stablernn"]
CMD ["serve"]

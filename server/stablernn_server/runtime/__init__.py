"""Models that are open, and what runs them: numbers in, numbers out, no HTTP."""

import os

# Builds of ONNX Runtime report to their maker unless this is set before they are imported.
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")

"""The code that runs in Job and serving pods: stages, store, backends and server."""

import os

# ONNX Runtime sends telemetry since 1.29, unless this is set before its first import
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")

"""Builds TensorRT engines: one builder over an injected module, `tensorrt` or `tensorrt_rtx` (`flavor`)."""

"""Builds TensorRT engines: one builder over an injected module, `tensorrt` or `tensorrt_rtx`.

The differences between the two are one table (`flavor`); whatever imports NVIDIA's module runs in
a process of its own.
"""

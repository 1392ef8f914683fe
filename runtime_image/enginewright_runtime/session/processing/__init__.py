"""ONNX models that run on the CPU before and after the served one: how they connect, and their process.

Their libraries decode what clients send, and may end the process: onnxruntime-extensions 0.15.2 does so on a GIF
(libjpeg's error handler calls `exit`). So steps run in separate processes, with limits of memory and time.
"""

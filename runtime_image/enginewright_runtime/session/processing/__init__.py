"""ONNX models that run on the CPU before and after the served one: how they connect, and their process.

Their libraries decode what clients send. onnxruntime-extensions 0.15.2 ends the process on a GIF (libjpeg's
error handler calls `exit`), so steps run in processes of their own, with limits of memory and time.
"""

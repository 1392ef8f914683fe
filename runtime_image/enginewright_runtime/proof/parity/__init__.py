"""Whether two models, or one model on two backends, give the same outputs, and by how much they do not.

One comparison (`comparison`) for every proof: the stages', the server's at start and the sidecar's in
production. It is NumPy alone: neither ONNX nor ONNX Runtime is imported, for a sidecar has no memory
for them. What reads or runs models lies in `drift`, `bisection` and `observing`.
"""

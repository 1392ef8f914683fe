"""Whether two models, or one model on two backends, give the same outputs, and by how much they do not.

One comparison (`comparison`) for every proof: the stages', the server's at start and the sidecar's in
production. It is NumPy alone: neither ONNX nor ONNX Runtime is imported, for a sidecar has no memory
for them. It asks `measuring` for the figures of one output, `tolerances` for what they may be, and
`variation` where outputs differ from run to run, whose distributions `spread` compares. What reads or
runs models lies in `drift`, `bisection` and `observing`.
"""

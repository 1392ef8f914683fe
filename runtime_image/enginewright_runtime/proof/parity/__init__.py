"""Whether two models, or one model on two backends, have equal outputs, and how much they differ.

The same comparison (`comparison`) serves the stages, the server at startup and the sidecar in
production. It needs only NumPy: ONNX and ONNX Runtime do not fit into a sidecar's memory. It uses
`measuring` for the figures of one output, `tolerances` for their limits, and `variation` for outputs
that differ from run to run, whose distributions `spread` compares. `drift`, `bisection` and
`observing` read or run models.
"""

"""Measures what rounding to a precision costs in each part of a model's outputs, before anything is converted.

`emulation` rewrites the source so that ONNX Runtime's CPU provider computes with a precision's rounding, by
the nodes of `formulas`; `measuring` runs it on the golden samples. The errors are a scale for those of an
artefact (`parity.parts_judge`): far larger ones are a fault.
"""

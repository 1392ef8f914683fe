"""The ONNX graph as found and as scoped: reading, walking, types, constants, shapes. Runs nothing."""

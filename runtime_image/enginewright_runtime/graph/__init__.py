"""Reads and analyses ONNX graphs: traversal, types, constants, shapes, scopes. Runs no inference."""

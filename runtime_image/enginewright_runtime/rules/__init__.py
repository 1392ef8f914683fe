"""Known problems of ONNX models in production, as a table of pure rules, `table.RULES`, without native code."""

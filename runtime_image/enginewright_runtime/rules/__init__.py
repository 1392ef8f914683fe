"""What is known to go wrong with ONNX models in production, as a table of pure rules.

`table.RULES` says what each rule finds, what to do about it and who says so; the other modules hold
the checks, one family each. Nothing here runs native code on the model.
"""

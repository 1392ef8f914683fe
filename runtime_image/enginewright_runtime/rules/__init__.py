"""What is known to go wrong with ONNX models in production, as a table of pure rules.

`table.RULES` states what each rule finds, its remedy and its source; the other modules hold the
checks, one family each. Nothing here runs native code on the model.
"""

"""Finds sizes of a model's open dimensions, and values of its scalars, by running the model.

A model says which dimensions are open, not which sizes it takes: a state's second dimension must
equal the batch, a convolution needs a minimal length, a Squeeze takes a 1 alone. So nothing is
guessed that did not run. `problem` says what is unknown, `search` finds one set of sizes that runs,
`ranges` finds how far each may go; both ask `attempts`, the only part that runs anything.
"""

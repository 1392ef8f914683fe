"""Finds sizes of a model's dynamic dimensions, and values of its scalars, by running the model.

A model declares which dimensions are dynamic, not which sizes it accepts: a state's second dimension
must equal the batch, a convolution needs a minimal length, a Squeeze accepts only 1. So only sizes
that have run are returned. `problem` defines the unknowns, `search` finds one set of sizes that runs,
`ranges` extends each as far as it runs; both use `attempts`, the only part that runs anything.
"""

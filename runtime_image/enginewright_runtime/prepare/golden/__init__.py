"""Expected outputs of the source model on the reference, which every later proof compares with."""

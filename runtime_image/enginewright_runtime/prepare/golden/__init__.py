"""Golden outputs of the source model, with which every later proof compares."""

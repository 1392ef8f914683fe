"""`enginewright plan`: what applying InferenceModels would do, before anything is applied.

It runs the operator's own pure functions on facts from a cluster, from a file, or assumed, and
changes nothing in the cluster.
"""

"""`enginewright plan`: what applying InferenceModels would do, before anything is applied.

It decides with the operator's own pure functions, on facts of a cluster, of a file, or assumed, and
writes nothing anywhere.
"""

"""`enginewright upload`: brings a model to where a cluster reads it, with its external data, digests compared."""

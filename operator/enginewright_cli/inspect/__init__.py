"""`enginewright engine inspect`: what an engine is, and whether it will load on a class.

It reads files or the cluster; nothing is deserialised, so no device is needed and no code of
the engine runs.
"""

"""What the operator and the runtime image exchange.

Both sides import this package and nothing else from each other: the operator writes tasks and reads
reports, the runtime image does the reverse. Everything here is plain data, so that either side can
be upgraded first.
"""

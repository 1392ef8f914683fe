"""What passes between the operator and the runtime image.

Both sides import this package and nothing else of each other: the operator writes tasks and reads
reports, the runtime image does the reverse. Everything here is plain data, so that either side can
be upgraded first.
"""

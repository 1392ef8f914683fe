"""The only error shown to the user: its message states the cause and the remedy."""


class ClusterError(Exception):
    """A failure that the user can act on."""

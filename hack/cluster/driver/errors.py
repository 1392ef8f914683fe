"""The one error that reaches a user: a sentence with the thing, the reason and the remedy."""


class ClusterError(Exception):
    """Something that the user can act on."""

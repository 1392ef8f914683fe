"""What adds a missing part of this installation; no package index has a release of Enginewright."""


def remedy(extras: str) -> str:
    """Return the command that installs with these extras, in a sentence."""
    return f"run in a clone of Enginewright's repository: pip install '.[{extras}]'"

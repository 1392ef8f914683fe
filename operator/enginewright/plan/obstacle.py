"""What keeps a spec from being acted on, before anything is made."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Obstacle:
    """Why nothing new can be brought up."""

    reason: str
    message: str
    stalled: bool = True  # False: it passes by itself

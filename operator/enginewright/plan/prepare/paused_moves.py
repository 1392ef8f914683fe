"""Which Jobs wait while a user pauses a model's move to other runtime images.

The operator began the move, so that pausing it starts nothing more: Jobs that run end, and no other one is
created. What the model needs with its own images is no part of the move: if it is the same with both, it is
prepared and built as ever, else what the store has lost of what serves is rebuilt (repair.py). Changes of the spec are prepared while they are paused: their users have asked for that.
"""

from dataclasses import replace

from enginewright.plan.history.served import serving_keys
from enginewright.plan.resolve.resolve import Target, resolve
from enginewright.plan.types import Facts


def is_preparation_paused(facts: Facts, target: Target) -> bool:
    """Return whether no Job is created that prepares `target`."""
    if facts.paused_with is None:
        return False
    own = resolve(replace(facts, config=facts.paused_with), target.source)
    return not (isinstance(own, Target) and own.artifact_hash == target.artifact_hash)


def is_build_paused(facts: Facts, engine_key: str) -> bool:
    """Return whether no Job is created for this model that builds the engine."""
    return facts.paused_with is not None and engine_key not in serving_keys(facts)

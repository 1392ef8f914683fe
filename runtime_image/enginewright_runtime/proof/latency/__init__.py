"""How long a run of a model takes, how many rows a second it gives, and what memory that needs."""

from enginewright_runtime.proof.latency.comparing import Candidate, Result, compare, measure

__all__ = ["Candidate", "Result", "compare", "measure"]

"""Names of what belongs to a model: readable, deterministic, within Kubernetes' limits."""

import hashlib
from typing import Final

MAX_LABEL: Final = 63
_DEPLOYMENT: Final = 46  # characters
_HASH_LENGTH: Final = 8


def child_name(*parts: str) -> str:
    """Join `parts` with dashes; too long a name is cut and made unique by a hash of the whole.

    The last part stays whole: it tells children of one model apart.
    """
    whole = "-".join(parts)
    if len(whole) <= MAX_LABEL:
        return whole
    digest = hashlib.sha256(whole.encode()).hexdigest()[:_HASH_LENGTH]
    last = parts[-1]
    available = MAX_LABEL - len(last) - len(digest) - 2
    if available < 1:
        return f"{whole[: MAX_LABEL - len(digest) - 1].rstrip('-.')}-{digest}"
    return f"{whole[:available].rstrip('-.')}-{digest}-{last}"


def prepare_job_name(model: str, inputs_hash: str, attempt: int) -> str:
    """Return the name of the Job that prepares these inputs for the `attempt`-th time (from 1)."""
    return child_name(model, "prepare", f"{inputs_hash[:10]}-{attempt}")


def engine_job_name(engine: str, build_hash: str, attempt: int) -> str:
    """Return the name of the Job that builds an engine for the `attempt`-th time (from 1)."""
    return child_name(engine, f"{build_hash[:10]}-{attempt}")


def lookup_job_name(engine: str, build_hash: str, attempt: int) -> str:
    """Return the name of the Job that looks for an engine in the store."""
    return child_name(engine, "lookup", f"{build_hash[:10]}-{attempt}")


def deployment_name(model: str, accelerator_class: str) -> str:
    """Return the name of a model's new Deployment for one accelerator class; no two pairs share one.

    One dash before a class that has none, else two: a-b on c is a-b-c, a on b-c is a--b-c. Three
    precede a hash, where that would be too long, or a name has two in a row itself.
    46 characters leave room for the 17 that a pod's name adds, so that it is a host name, whole.
    """
    whole = f"{model}{'--' if '-' in accelerator_class else '-'}{accelerator_class}"
    if len(whole) <= _DEPLOYMENT and "--" not in model and "--" not in accelerator_class:
        return whole
    return _hashed(whole, f"{model}/{accelerator_class}")


def trial_name(model: str, accelerator_class: str, revision: str) -> str:
    """Return the name of the Deployment that tries a revision again beside what serves."""
    return _hashed(f"{model}-{accelerator_class}", f"{model}/{accelerator_class}/{revision}")


def _hashed(whole: str, unique: str) -> str:
    """Return `whole` cut to the length of a Deployment's name, with a hash of `unique`."""
    digest = hashlib.sha256(unique.encode()).hexdigest()[:_HASH_LENGTH]
    return f"{whole[: _DEPLOYMENT - _HASH_LENGTH - 3].rstrip('-.')}---{digest}"


def revision_name(model: str, revision: str) -> str:
    """Return the name of a revision's ControllerRevision."""
    return child_name(model, revision)

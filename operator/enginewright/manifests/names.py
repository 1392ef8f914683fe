"""Names of the objects of a model: readable, deterministic, within Kubernetes' limits."""

import hashlib
from typing import Final

MAX_LABEL: Final = 63
_DEPLOYMENT: Final = 46  # characters
_HASH_LENGTH: Final = 8


def child_name(*parts: str) -> str:
    """Join `parts` with dashes; a name that is too long is truncated before the last part, and gets a hash of all."""
    full = "-".join(parts)
    if len(full) <= MAX_LABEL:
        return full
    digest = hashlib.sha256(full.encode()).hexdigest()[:_HASH_LENGTH]
    last = parts[-1]
    available = MAX_LABEL - len(last) - len(digest) - 2
    if available < 1:
        return f"{full[: MAX_LABEL - len(digest) - 1].rstrip('-.')}-{digest}"
    return f"{full[:available].rstrip('-.')}-{digest}-{last}"


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
    """Return the name of a model's new Deployment for one accelerator class; unique for each pair.

    The separator is one dash before a class without dashes, else two: a-b on c is a-b-c, a on b-c is
    a--b-c. A name that would be too long, or has two consecutive dashes in model or class, ends with
    three dashes and a hash. A pod's name adds 17 characters to the 46, so that it is a valid host name.
    """
    full = f"{model}{'--' if '-' in accelerator_class else '-'}{accelerator_class}"
    if len(full) <= _DEPLOYMENT and "--" not in model and "--" not in accelerator_class:
        return full
    return _add_hash(full, f"{model}/{accelerator_class}")


def canary_name(model: str, accelerator_class: str) -> str:
    """Return the name of the Deployment that runs a new revision beside the serving one."""
    return _add_hash(f"{model}-{accelerator_class}-canary", f"{model}/{accelerator_class}/canary")


def canary_service_name(model: str) -> str:
    """Return the name of the Service in front of a canary, which no model's own Service has."""
    return _add_hash(f"{model}-canary", f"{model}/canary")


def _add_hash(full: str, unique: str) -> str:
    digest = hashlib.sha256(unique.encode()).hexdigest()[:_HASH_LENGTH]
    return f"{full[: _DEPLOYMENT - _HASH_LENGTH - 3].rstrip('-.')}---{digest}"


def revision_name(model: str, revision: str) -> str:
    """Return the name of a revision's ControllerRevision."""
    return child_name(model, revision)

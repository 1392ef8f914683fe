"""Probing a runtime image: its Jobs, and what they report."""

from functools import partial
from typing import Final

from enginewright_contract.images import ImageFacts
from enginewright_contract.reasons import Reason
from pydantic import ValidationError

from enginewright.manifests.job_limits import PROBE_SECONDS
from enginewright.manifests.probe_job import PROBE, probe_job_name
from enginewright.observed.pods import PodView
from enginewright.plan.attempts import Work

_STAGES: Final = (PROBE,)


def probing(image_hash: str, placement: str) -> Work[ImageFacts]:
    """Return the work of probing an image; no user can fix it by an edit, so it is always retried."""
    return Work(
        stages=_STAGES,
        name=partial(probe_job_name, image_hash),
        result=_facts,
        placement=placement,
        overdue=(Reason.INTERNAL_ERROR, f"the probe timed out after {PROBE_SECONDS} s"),
        limit=None,
    )


def _facts(pod: PodView) -> ImageFacts | None:
    for each in pod.containers:
        if each.ended and each.ended.exit_code == 0:
            try:
                return ImageFacts.model_validate_json(each.ended.message)
            except ValidationError:
                continue
    return None

"""What the operator asks of a Job that collects garbage in a namespace's store, and what that Job reports.

The operator knows what is needed, the Job sees what is stored and when it was used last. The list of
what is needed is out of date once it is made, and a Job may have published or found an artefact since.
So nothing that was used shortly before the list, or after it, is ever removed.
"""

from typing import Annotated, Final, TypeAlias

from pydantic import AwareDatetime, Field

from enginewright_contract.base import Message, Number, Seconds

COLLECT_STAGE: Final = "collect"  # of the runtime image: `enginewright-runtime stage collect`

KEPT_CHARACTERS: Final = 16  # of a key, in `CollectTask.keep`
MOST_KEPT: Final = 50_000  # keys: etcd takes objects of 1.5 MiB, and Linux 2 MiB of variables
# An artefact that was used more recently is not marked as used again, which would be a write for each use
RENEWED_AFTER_SECONDS: Final = 3600.0
# Least age of what is removed: the above, and as much for clocks that differ
LEAST_AGE_SECONDS: Final = 2 * RENEWED_AFTER_SECONDS
REPORT_AGE_SECONDS: Final = 30 * 86400.0
CACHE_AGE_SECONDS: Final = 90 * 86400.0

# UID of a cluster's namespace kube-system, which tells clusters apart
ClusterUid: TypeAlias = Annotated[str, Field(pattern=r"^[0-9A-Za-z-]{1,64}$")]
KeyBeginning: TypeAlias = Annotated[str, Field(pattern=rf"^[0-9a-f]{{{KEPT_CHARACTERS}}}$")]


class CollectTask(Message):
    """Input of the stage `collect`; the store is that of the pod, as for all stages.

    Without `max_age_seconds` and `max_bytes` no artefact is removed, only what interrupted
    publications have left, reports and caches.
    """

    job: str  # name of the Job: its report goes to reports/<job>/ in the store
    # Beginnings of the keys of all prepared models and engines that are needed. An engine is complete:
    # its prepared model is needed only if it is listed, too
    keep: Annotated[tuple[KeyBeginning, ...], Field(max_length=MOST_KEPT)]
    as_of: AwareDatetime  # when that list was made, at the latest
    # What was published or used later than so long before `as_of` is never removed
    min_age_seconds: Annotated[Seconds, Field(ge=LEAST_AGE_SECONDS)]
    max_age_seconds: Seconds | None = None  # after so long unused, what is not needed is removed
    # While the artefacts have more bytes, what is not needed is removed, the longest unused first
    max_bytes: Number | None = None
    report_age_seconds: Seconds = REPORT_AGE_SECONDS  # of reports that are removed
    cache_age_seconds: Seconds = CACHE_AGE_SECONDS  # of caches, since they were last written
    # Whose needs are listed, unless by hand or with a volume. It is recorded in the store, and nothing is
    # removed where there is another one
    cluster: ClusterUid | None = None
    dry_run: bool = False  # removes nothing, and reports what would be removed


class Collected(Message):
    """Result of the stage `collect`; bytes of shared files count once. With `dry_run`, what would be removed."""

    artifacts: Number  # before, prepared models and engines
    bytes: Number  # of their files, before
    needed_artifacts: Number  # whose keys are in the task's `keep`
    needed_bytes: Number
    removed_artifacts: Number
    removed_bytes: Number  # in a bucket, their files go once they are old enough to be leftovers
    bytes_after: Number
    leftovers: Number = 0  # removed files or folders of interrupted publications
    leftover_bytes: Number = 0
    reports: Number = 0  # removed files
    caches: Number = 0  # likewise
    capacity_bytes: Number | None = None  # of the volume; a bucket has none
    free_bytes: Number | None = None  # likewise, after
    dry_run: bool = False

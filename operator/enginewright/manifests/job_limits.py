"""The limits of Jobs: tries, deadlines, and requests unless a spec has them. How many run at once is a setting."""

from datetime import timedelta
from typing import Final

# Tries. The Job controller starts a pod again after a failure that may pass; then another Job is an attempt.
POD_RETRIES: Final = 2
ATTEMPTS: Final = 5  # after failures that rarely pass on their own
# of one Job's pods: they do not count towards backoffLimit, so would never end
EVICTIONS: Final = 3
FIRST_RETRY: Final = timedelta(minutes=1)  # from a failure to the next attempt, doubled by each
LONGEST_RETRY: Final = timedelta(hours=1)
COLLECTION_RETRY: Final = timedelta(hours=1)

# Deadlines. Those of pods that prepare models and build engines are in `spec.build.timeout`.
PROBE_SECONDS: Final = 600
LOOKUP_SECONDS: Final = 600
COLLECTION_SECONDS: Final = 4 * 3600  # of the Job: also of one that no node takes
# from scheduling to the first container, if pods yielded
START_TIMEOUT: Final = timedelta(minutes=5)
UNREACHABLE: Final = timedelta(minutes=5)  # after which a pod that does not terminate is lost
WITHOUT_POD: Final = timedelta(minutes=2)  # until a Job is reported that gets no pod
REFUSED_AFTER: Final = timedelta(seconds=20)  # until a Job's Events may say why it gets no pod
REFUSED_AGAIN: Final = timedelta(minutes=1)  # between two looks at them
KEPT_SECONDS: Final = 24 * 3600  # for people to inspect; the outcome is recorded in a status
ENDED_KEPT: Final = 2  # Jobs of one model that prepared it, of those that ended

# Requests of every stage; there are no limits, for any model may be prepared: a process that loads one limits itself.
PROBE_RESOURCES: Final = {"requests": {"cpu": "100m", "memory": "128Mi"}}
PREPARATION_RESOURCES: Final = {"requests": {"cpu": "100m", "memory": "256Mi"}}
ENGINE_RESOURCES: Final = {"requests": {"cpu": "100m", "memory": "512Mi"}}
COLLECTION_RESOURCES: Final = {"requests": {"cpu": "100m", "memory": "128Mi"}}

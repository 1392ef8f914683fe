"""The form of a bucket's address, and of its parts, for settings and for the programs that open the store."""

from typing import Final

from enginewright_contract.schemes import BUCKETS

# Neither credentials (KEY:SECRET@, ?sig=) nor what object stores cannot name: empty segments, . and ..
_SEGMENT: Final = r"(\.?[^/\s?#@.]|\.\.[^/\s?#@])[^/\s?#@]*"
_SCHEME: Final = "|".join(bucket.name for bucket in BUCKETS)
BUCKET_ADDRESS: Final = rf"^({_SCHEME})://{_SEGMENT}(/{_SEGMENT})*/?$"
"""Regular expression of addresses such as s3://BUCKET/PATH; without look-around, for Rust and Go."""

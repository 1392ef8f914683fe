"""The form of a bucket's address, and of its parts, for settings and for whoever opens the store."""

from typing import Final

# Neither credentials (KEY:SECRET@, ?sig=) nor what object stores cannot name: empty segments, . and ..
_SEGMENT: Final = r"(\.?[^/\s?#@.]|\.\.[^/\s?#@])[^/\s?#@]*"
BUCKET_ADDRESS: Final = rf"^(s3|gs|az)://{_SEGMENT}(/{_SEGMENT})*/?$"
"""Regular expression of addresses such as s3://BUCKET/PATH; without look-around, for Rust and Go."""

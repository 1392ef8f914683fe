"""The endpoints that clients call over HTTP and gRPC, and the admission of their requests."""

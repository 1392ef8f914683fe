"""The endpoints that clients call over HTTP and gRPC, and what admits their requests."""

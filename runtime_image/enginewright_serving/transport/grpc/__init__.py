"""gRPC over HTTP/2: calls, their heads and their statuses."""

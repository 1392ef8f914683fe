"""HTTP/1.1, HTTP/2, TLS and gRPC's framing with their limits; it knows no model."""

"""The gRPC form of the Open Inference Protocol v2."""

"""The Open Inference Protocol's messages of gRPC."""

"""The methods of gRPC."""

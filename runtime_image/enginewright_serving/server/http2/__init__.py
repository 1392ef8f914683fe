"""HTTP/2 for unary calls: framing, streams, flow control and limits, without the application."""

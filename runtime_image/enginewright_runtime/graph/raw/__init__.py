"""The model's protobuf as it was found: what rules, limits and sniffing must see. Nothing is repaired."""

"""The model's protobuf as parsed, unrepaired: rules, limits and format detection must see it so."""

"""Pure decisions: observed facts in, wanted objects, status and events out. No IO, no clock."""

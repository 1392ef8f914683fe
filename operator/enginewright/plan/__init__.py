"""Pure decisions: observed facts in, objects to apply, status and events out. No IO, no clock."""

"""What becomes of a publish before it is a unit of the turn."""

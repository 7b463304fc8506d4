"""What happens to a publish before it is a unit of the turn."""

"""What a database must be able to do, and the two that can."""

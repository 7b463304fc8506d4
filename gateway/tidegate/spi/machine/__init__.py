"""What a plugin asks of the operating system. Import it from its modules."""

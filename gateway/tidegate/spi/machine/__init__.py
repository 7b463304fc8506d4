"""What a plugin needs of the operating system. Import from its modules."""

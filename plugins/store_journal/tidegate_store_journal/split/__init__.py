"""Messages in directories of their destinations."""

"""Groups of commands, one module each."""

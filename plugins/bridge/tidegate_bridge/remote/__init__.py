"""The process that speaks with the other broker."""

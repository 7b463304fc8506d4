"""The broker's side of one client connection."""

"""What operators see of clients, limits and rights, and the end of what clients have."""

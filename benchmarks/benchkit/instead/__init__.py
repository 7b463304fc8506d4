"""What the benchmark can measure instead of the loads."""

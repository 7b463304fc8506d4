"""What lives where: pending lists, references, the acknowledged log, the small state."""

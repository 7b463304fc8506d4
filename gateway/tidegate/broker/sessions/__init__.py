"""Who connects, what outlives a connection, and what is published when it ends."""

"""Who is connected, what outlives a connection, and what is published when it ends."""

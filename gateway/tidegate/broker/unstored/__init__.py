"""Messages of queues that need not be stored: in memory and in temporary files instead of the store."""

"""What need not be stored of queues: in memory and in temporary files, in the place of the store."""

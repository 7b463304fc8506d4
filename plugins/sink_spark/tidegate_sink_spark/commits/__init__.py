"""When the job commits, and when it sleeps."""

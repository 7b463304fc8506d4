"""``tidegate doctor``: what of this machine, and of the configuration on it, will cause trouble."""

"""Commands that only look at a gateway that runs."""

"""One batch a turn of the event loop."""

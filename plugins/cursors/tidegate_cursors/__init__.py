"""The store, vm and file cursors that feed consumers from a pending list."""

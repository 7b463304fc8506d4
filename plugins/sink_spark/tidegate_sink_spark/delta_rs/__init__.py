"""The engine ``deltalake``: staged files become files of a Delta table, without a Java machine."""

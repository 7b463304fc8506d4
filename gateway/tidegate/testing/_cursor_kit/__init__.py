"""What the cursor kit (:mod:`tidegate.testing.cursor_kit`) is made of."""

"""Parts of the cursor kit (:mod:`tidegate.testing.cursor_kit`)."""

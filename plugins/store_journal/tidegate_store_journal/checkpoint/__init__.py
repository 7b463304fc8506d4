"""Checkpoints: what makes the next start short."""

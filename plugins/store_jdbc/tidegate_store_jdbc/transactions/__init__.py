"""Who may write, and transactions that survive a broken connection."""

"""What the sink is measured with: its parts in this process, and gateways with and without one."""

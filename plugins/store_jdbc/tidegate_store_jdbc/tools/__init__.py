"""``tidegate store create, info, …``: the operator's commands for the tables."""

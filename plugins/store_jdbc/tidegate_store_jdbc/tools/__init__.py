"""``tidegate store create, info, …``: what an operator does to the tables."""

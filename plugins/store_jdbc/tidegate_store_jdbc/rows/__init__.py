"""Values of the contract as rows of tables, and batches as statements."""

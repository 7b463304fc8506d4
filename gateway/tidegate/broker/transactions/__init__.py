"""Operations held together: transactions, branches, duplicate ids."""

"""What memory buys: budgets of an index that is there, and options for one that is not."""

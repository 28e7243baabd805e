"""Memory planning: budgets of an index, and options for one that is still to build."""

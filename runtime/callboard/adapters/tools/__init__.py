"""Tools that agents call, one module for each family."""

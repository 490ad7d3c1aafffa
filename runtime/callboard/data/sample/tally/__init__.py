"""Splits bills among friends. Amounts are whole cents."""

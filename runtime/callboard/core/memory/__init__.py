"""Memory notes: their form, their choice for a turn, and secrets that they must not contain."""

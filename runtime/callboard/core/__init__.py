"""Pure functions: what follows from a state, and how an event changes it."""

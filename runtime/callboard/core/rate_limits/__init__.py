"""Rate limits of a model service: which call is sent next, and when."""

"""Envelopes: their form, their authority, dead letters, and limits on floods."""

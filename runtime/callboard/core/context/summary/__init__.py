"""Summaries: their requests, the use of their answers, and the content that survives them."""

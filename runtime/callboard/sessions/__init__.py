"""Sessions, from their options to their result: opened, hosted, attached to, served, and replayed."""

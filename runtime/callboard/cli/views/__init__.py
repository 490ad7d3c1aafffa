"""Views: pure functions that turn rows into lines for a person, or JSON for a script."""

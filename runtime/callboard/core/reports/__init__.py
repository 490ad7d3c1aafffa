"""Reports for people, folded from journals."""

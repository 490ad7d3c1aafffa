"""Values that all layers share: records, events, steps, specs, settings, and errors."""

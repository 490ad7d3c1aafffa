"""Recovery from failed model calls: retries, fallback models, and content that a service refuses."""

"""HARP (2026): a fine layer cut, and more micro-batches in flight in front of slow links."""

"""HARP (2026): a fine cut, and more micro-batches in flight for slow links."""

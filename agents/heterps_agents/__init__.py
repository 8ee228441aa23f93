"""All that answers a problem with a plan: exact, heuristic, search, learned."""

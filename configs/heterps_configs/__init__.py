"""The documents: cluster, model profile, job, plan; their checks; the shipped YAML files."""

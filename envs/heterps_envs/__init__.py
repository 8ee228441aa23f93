"""The simulated world: cost model, memory, simulator, bounds, environments, problem generator."""

"""PipeEdge (Hu et al., 2022): the chain with the least bottleneck."""

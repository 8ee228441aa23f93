"""Piper (Tarnawski et al., NeurIPS 2021): stages, replicas and tensor parallelism."""

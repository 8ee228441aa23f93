"""Readers of the formats that others published their workloads in."""

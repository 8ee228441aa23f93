"""Oobleck (Jang et al., SOSP 2023): pipeline templates for up to f faults."""

"""Sailor (Strati et al., SOSP 2025): resources and plan together, under its own cost."""

"""Proofs that are short."""

from tests.short_proofs import short_proofs

__all__ = ["short_proofs"]

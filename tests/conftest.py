"""Settings for all tests."""

from __future__ import annotations

from hypothesis import settings

# Compilation and busy machines make single examples slow; the same examples on every run.
settings.register_profile("heterps", deadline=None, derandomize=True)
settings.load_profile("heterps")

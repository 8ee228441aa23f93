"""`heterps train`: a placement policy from a training config."""

from __future__ import annotations




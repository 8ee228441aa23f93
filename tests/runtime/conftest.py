"""Runs whose results alone are looked at begin sooner."""

from tests.kept_templates import own_templates, templates_wait

__all__ = ["own_templates", "templates_wait"]

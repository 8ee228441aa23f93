"""What the package index shows: the README, without links that would lead nowhere there.

A relative link becomes the path of its file in plain text, and a relative picture goes with the
caption below it. Links with an address stay.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

# An address has a scheme, such as https: or mailto:.
_RELATIVE = r"\((?![a-zA-Z][a-zA-Z0-9+.-]*:)([^)\s]+)\)"
_PICTURE = re.compile(rf"!\[[^\]]*\]{_RELATIVE}\n+(?:\*[^*]+\*\n+)?")
_LINK = re.compile(rf"\[([^\]]*)\]{_RELATIVE}")


def long_description(readme: str) -> str:
    """The README as text that can be read anywhere."""
    return _LINK.sub(_plain, _PICTURE.sub("", readme))


def _plain(link: re.Match[str]) -> str:
    text, target = link[1], link[2]
    return f"`{target}`" if text == target else f"{text} (`{target}`)"


class ReadmeHook(MetadataHookInterface):
    """Fills in the field `readme`."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Called by hatchling, whatever it builds."""
        text = (Path(self.root) / "README.md").read_text(encoding="utf-8")
        metadata["readme"] = {"content-type": "text/markdown", "text": long_description(text)}

"""Imports DT-FM's table of regions (DS3Lab/DT-FM): delay and bandwidth between pairs of cities."""

from __future__ import annotations

import os

from heterps_configs.documents.cluster import Link
from heterps_configs.errors import UnknownNameError
from heterps_configs.importers.json_entry import Entry

_MILLISECOND = 1e-3
_GIGABIT_BYTES = 1e9 / 8


class RegionLinks:
    """The links between regions; every link is the same in both directions.

    Attributes:
        regions: Names of the regions.
    """

    def __init__(self, links: dict[frozenset[str], Link]) -> None:
        self._links = links
        self.regions = frozenset(name for pair in links for name in pair)

    def between(self, first: str, second: str) -> Link:
        """The link between two regions.

        Raises:
            UnknownNameError: A region is not in the table, or that pair is not.
        """
        for name in (first, second):
            if name not in self.regions:
                raise UnknownNameError("region", name, self.regions)
        pair = frozenset((first, second))
        if pair not in self._links:
            known = [" - ".join(sorted(names)) for names in self._links]
            raise UnknownNameError("pair of regions", f"{first} - {second}", known)
        return self._links[pair]


def load_region_links(path: str | os.PathLike[str]) -> RegionLinks:
    """Reads `region_delay_bandwidth.json`; milliseconds and Gbit/s become seconds and bytes/s.

    Raises:
        DocumentError: The file is malformed, or names a pair twice.
        HeterpsError: The file cannot be read.
    """
    links: dict[frozenset[str], Link] = {}
    for entry in Entry.from_json(path).entries():
        pair = frozenset((entry["a"].text(), entry["b"].text()))
        if len(pair) != 2 or pair in links:
            entry.fail(f"the pair {' - '.join(sorted(pair))} stands twice or is one region")
        links[pair] = Link(
            latency_s=entry["delay_ms"].number() * _MILLISECOND,
            bandwidth_bytes_per_s=entry["bandwidth_gbps"].number(above=True) * _GIGABIT_BYTES,
        )
    return RegionLinks(links)

"""HexiScale (2024): pipelines of unlike depth and widths by partitions of the device graph."""

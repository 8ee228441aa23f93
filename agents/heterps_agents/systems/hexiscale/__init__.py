"""HexiScale (2024): pipelines of unlike depth and widths, from the graph of devices."""

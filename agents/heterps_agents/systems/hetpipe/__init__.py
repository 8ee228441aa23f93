"""HetPipe (2020): virtual workers of unlike devices, each a pipeline, side by side."""

"""Parts of a model profile: layers, their splits, measurements, sources.

Front door: `layer.LayerProfile`. The profile itself is `documents.model_profile.ModelProfile`.
"""

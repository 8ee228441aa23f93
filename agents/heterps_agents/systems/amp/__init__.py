"""AMP (2022): degrees, device order and layer split together, all-reduces included."""

"""AutoHete (2025): keep, recompute or offload each layer, by an integer programme."""

"""PipeDream (Narayanan et al., SOSP 2019): the hierarchical split of its optimizer."""

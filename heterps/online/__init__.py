"""Controllers of runs that learn, lose devices and follow spot traces.

Front doors: `controller`, `elastic`.
"""

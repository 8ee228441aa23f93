"""Seconds of layers on cards, from measurements that others have published.

Front doors: `formula.card_seconds`, `document.shipped_calibration`; `fit.fit_cards` makes what is
shipped, and `errors` says how far it is off on cards and models that it has not seen.
"""

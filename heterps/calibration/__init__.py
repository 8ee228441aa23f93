"""The calibration of cards, fitted again from a folder of published measurements.

Front doors: `samples.published_samples` reads and traces what a folder has,
`refit.fitted_with_errors` fits it. What is fitted, and how, is in `heterps_envs.card_times`.
"""

"""Readers of formats that others published their workloads in.

Front doors: a module for each format (`sailor`, `pipedream` and others). It reads the
files, and makes a document of ours of them. `json_entry` reads JSON so that errors name the
place.
"""

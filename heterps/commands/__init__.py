"""What each command does, one module per verb.

Front door: the verb's module, `place.run_place` and so on. They call `heterps.planning`,
`heterps_runtime` and `heterps.online`, and print through `heterps.reports`.
"""

"""What every document is: clusters, devices, model profiles, jobs, plans, estimates, trainings.

Front door: `base.Document` (fields, units, checks); `heterps_configs.library` loads any of them.
"""

"""Fields, units and checks of every document.

Front door: `base.Document`. One module for each document: `cluster`, `device`, `link_kinds`,
`model_profile` (its parts in `model`), `job`, `plan` (of `stage`s), `estimate`, `operator_graph`,
`training`, `run_settings`, `run_events`. A new document also gets a line in
`heterps_configs.schema` and, if files of it are shipped, in `heterps_configs.library`.
"""

"""Whether any set of stages of few devices does all layers in so many seconds.

Front door: `stage_search.StageSearch`.
"""

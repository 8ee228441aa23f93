"""Plans and trained weights in the formats of other tools.

Front door: `export.export_plan`. A target says what it cannot express: it refuses with the reason,
or leaves it out with a remark that says what that costs.
"""

"""Runs a plan on devices that come and go.

Front door: `run_elastic.run_elastic`. Parent: `supervisor`, with `generations` and `replanning`;
each process: `worker`. Which plan comes next is asked of `heterps.online.elastic`.
"""

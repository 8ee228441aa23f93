"""One process: memory, log, clock, compiler.

Front door: `memory_ledger`.
"""

"""One process: its memory, log, clock, and the compiler that it does not load.

Front door: `memory_ledger.MemoryLedger`.
"""

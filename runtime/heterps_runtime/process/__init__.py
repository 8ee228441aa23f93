"""One process: forked from one that imported torch; its memory, log and clock.

Front doors: `template.Template` forks, `memory_ledger.MemoryLedger` counts bytes. torch's compiler,
which nothing here needs, is kept out by `without_compiler`. Templates of runs one after the other
may be the same process: `template_pool`. `quiet_torch` is for the process of the command.
"""

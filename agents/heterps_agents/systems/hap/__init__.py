"""HAP: one program for all devices of a group, each with a share of its own.

Every layer is replicated, or split by batch, columns, rows or experts; how large each device's part
is, is the other half of the choice. Front door: `joint.best_together`, which chooses both at once;
the method as published is `alternation.alternate`: program search and linear programme in turns.
"""

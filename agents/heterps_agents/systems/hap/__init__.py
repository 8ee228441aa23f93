"""HAP: one program for all devices of a group, each with a share of its own.

Every layer is replicated, or split by batch, columns, rows or experts; how large each device's part
is, is the other half of the choice. Front door: `system.Hap`, which answers our problems. As
published the method is `alternation.alternate`: program search and linear programme in turns;
`joint.best_together` chooses both at once.
"""

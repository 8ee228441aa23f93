"""One problem for several searches at once, each in a process of its own.

Front doors: `together.place_together`, `members.members`.
"""

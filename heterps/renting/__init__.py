"""Which devices to rent: what is on offer, what a budget buys, the best plan on that.

Front door: `rent.place_within`.
"""

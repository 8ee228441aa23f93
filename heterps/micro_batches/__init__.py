"""Planning with one size of micro-batches, and with each one that is open.

Front doors: `sizes.open_sizes`, `one_size.place_one_size`, `each_size.place_each_size`,
`patient.place_patiently`.
"""

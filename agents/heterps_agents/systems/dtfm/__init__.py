"""DT-FM (2022): groups of devices and their order, by delays and bandwidths alone."""

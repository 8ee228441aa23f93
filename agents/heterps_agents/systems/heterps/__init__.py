"""HeterPS (Liu et al., 2021): a device type per layer by an LSTM; exact provisioning."""

"""HeterPS (Liu et al., 2021): type of device for each layer by an LSTM, exact provisioning."""

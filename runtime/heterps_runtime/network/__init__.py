"""Authenticated connections between the hosts of a run.

Front doors: `gate.Gate` on host 0, `tunnel.Tunnel` and `dial.dial` on the others,
`secret.read_secret` for what they share. All that travels here says who sent it and in which
order; nothing is encrypted.
"""

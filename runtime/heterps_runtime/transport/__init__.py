"""What travels between ranks: messages of cuts, sums of gradients.

Front door: `messenger.ProcessMessenger`.
"""

"""Tables, figures, traces and TensorBoard: they show, they compute nothing.

Front door: `console`.
"""

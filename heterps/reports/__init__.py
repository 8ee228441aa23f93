"""Tables, figures, traces and TensorBoard: they show, they compute nothing.

Front door: `console` (where output goes). One module for each kind of output.
"""

"""Graph problems: nodes on concrete devices, and the simulator that times them.

Front door: `problem`.
"""

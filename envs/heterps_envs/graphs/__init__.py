"""Graph problems: nodes on concrete devices, and the simulator that times them.

Front doors: `problem.GraphTables`, `simulator.simulate_graph`. Chains of layers are problems of
`heterps_envs.problem`; planners of graphs are in `heterps_agents.graphs`.
"""

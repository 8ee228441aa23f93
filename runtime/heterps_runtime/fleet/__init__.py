"""The processes of an elastic run's devices, on this host and on others.

Front doors: `processes.Processes` starts, watches and ends them for the supervisor,
`others.OtherHosts` lets the other hosts in, on which `agent.serve_host` does what is asked.
"""

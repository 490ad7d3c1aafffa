"""Processes: commands of agents, the programs of the runtime, services of the system, and private sockets."""

"""From an objective to a deployment: what is left open is chosen from measured rows.

`request` reads a deployment file with open choices, `candidates` are the layouts that the planner
makes valid, with their memory, `load` says how fast the workload runs on one, `selection` keeps
those whose interval keeps the objectives and takes the best, `record` writes it down, `page` draws
it.
"""

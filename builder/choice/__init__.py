"""Choice: from an objective to a deployment; measurements decide what the file leaves open.

`request` reads a deployment file with open choices, `candidates` are the layouts that the planner
makes valid, with their memory and how fast the workload runs on them, `selection` keeps those that
meet the targets at the upper ends and takes the best, `report` writes it down, `page` draws it.
"""

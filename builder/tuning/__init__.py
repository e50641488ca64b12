"""Tuning: which server to start next on real hardware, from the estimate and the outcomes so far.

`candidates` has the layouts and changed options of a deployment that fit, `search` decides the next
start or the reason to stop. `outcomes` tells what each failed start rules out, and `posterior` what
measured servers say about the others. Pure: the same outcomes give the same next start.
"""

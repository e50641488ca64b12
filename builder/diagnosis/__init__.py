"""Names the cause of a failure from the logs of a server and the state of its machine.

`signatures` are rows of data, `log` reads lines of any size of file, `watch` finds what rows ask
for, `judgement` decides what failed first. Nothing here starts a process or opens a connection.
"""

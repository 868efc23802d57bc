"""How nodes find each other: a directory at the rendezvous address of the run, and nodes that register there.

`meeting` is what a node calls, `directory` answers at the rendezvous address, `visiting` asks there, `probing` detects
failed processes by their addresses, `identity` distinguishes runs. Imports `net` and what is below.
"""

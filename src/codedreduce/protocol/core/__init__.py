"""The common base of all machines of the protocol: tables, events and actions, messages and their bytes, settings.

Imports nothing from the other packages of the protocol.

- `machine`: transition tables, and the rule for what is not in them; `events`: what can happen, and what a machine
  requests; `timers`: the timers of all machines
- `messages`, `wire`: messages between nodes, and their bytes; `membership`: hello, welcome, ready, goodbye
- `settings`: what all nodes of a run agree on; `audits`: blocks that are computed twice, ranks that were wrong
- `outbox`: chunks on their way to a neighbour; `blocks`: the smallest pieces of work
- `policy`: the constants of the reaction to stragglers; `budget`: how much redundant work
- `rank_table`, `rank_position`: the states of a rank and its transitions; the state and round of one rank
"""

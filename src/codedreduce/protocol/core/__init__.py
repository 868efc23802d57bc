"""What all machines of the protocol share: tables, events and actions, messages and their bytes, settings.

Imports nothing of the other rooms.

- `machine`: tables, and the rule for what is not in them; `events`: what can happen, and what a machine wants done
- `messages`, `wire`: what nodes say to each other, and as which bytes; `membership`: hello, welcome, ready, goodbye
- `settings`: what all nodes of a run agree on; `audits`, `mistakes`: which blocks are computed twice, and who was wrong
- `outbox`: chunks on their way to a neighbour; `blocks`: the smallest pieces of work; `budget`: how much is redundant
- `rank_table`, `rank_position`: the states of a rank and what leads where; in which state and round one is
"""

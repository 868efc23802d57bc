"""Which votes count in an election.

Voters are processes. A dead process can follow no leader and stays dead, so a rank that knows of its death does not
count it. Of the remaining voters, more than half must follow the leader, or half that include the first of them. If two
sets of living voters are enough at the same time, each has at least half of the living. So they have one in common.
That holds whatever each side knows of deaths: a rank that does not know of a death only requires more votes.

A new process is different: a rank that has not heard of it would count without it. So the new process has no vote until
all voters know of it. The leader ensures that:

1. The voters are S. New processes P have joined. The leader sends to all: the voters are S without the dead, and P are
   coming.
2. A rank that knows this counts twice: the followers must be enough of S, and enough of S and P together.
3. When every living voter in S has confirmed this to the leader, in the leader's generation, the voters are S and P.
   The leader waits for a voter that it cannot reach and does not know to be dead. A process that joins meanwhile
   computes, and waits for its vote.

So the states that two living voters know differ by at most one step: before and after 1, or before and after 3.
Both need enough of the same set, S in the first case, S and P together in the second, so both cannot have it. A rank
follows another only if that one knows no fewer steps than itself. (Numbers only grow, and those of a later generation
are later.) So a rank that missed a step cannot lead. All living voters know of the step, and follow only a rank that
does. A leader that was replaced without knowing it cannot finish a step: ranks that follow another do not answer it.
"""

from __future__ import annotations

from collections.abc import Iterable

from codedreduce.protocol.core.messages import Processes, Voters


class Voting:
    """What one process of a rank (`node`) knows of the voters. At first all ranks of the plan are, with any process."""

    def __init__(self, node: int, process: int, ranks: Iterable[int]) -> None:
        self._node = node
        self._process = process
        self.voters = Voters(ranks=tuple((rank, 0) for rank in ranks))
        self._met = {node: process}  # by rank: the process that this one is connected with, or was last
        self._dead: set[tuple[int, int]] = set()
        self._agreed: set[int] = set()  # on the leader: ranks that confirmed these voters
        self._new: dict[int, int] = {}  # on the leader: members that will be voters

    # -- which votes count

    @property
    def number(self) -> tuple[int, int]:
        """The number of this set of voters; later sets have higher numbers."""
        return self.voters.made_in, self.voters.number

    def _is_dead(self, rank: int, process: int) -> bool:
        return (rank, process or self._met.get(rank, 0)) in self._dead

    def _living(self, processes: Processes) -> dict[int, int]:
        return {rank: process for rank, process in processes if not self._is_dead(rank, process)}

    def _named(self) -> Processes:
        return (*self.voters.ranks, *self.voters.coming)

    def living(self) -> set[int]:
        """The voters that are not known to be dead."""
        return set(self._living(self.voters.ranks))

    def is_voter(self, rank: int, process: int) -> bool:
        """Whether a process is a voter, or coming to be one."""
        known = dict(self._named())
        return rank in known and (known[rank] in (0, process) or not process) and not self._is_dead(rank, process)

    @property
    def has_say(self) -> bool:
        """Whether this process is a voter."""
        return dict(self.voters.ranks).get(self._node) in (0, self._process)

    def is_enough(self, ranks: Iterable[int]) -> bool:
        """Whether these are more than half of the voters, or half with the first one; also with those coming."""
        some, voters = set(ranks), self._living(self.voters.ranks)
        together = voters | self._living(self.voters.coming)
        return _is_enough(some, voters.keys()) and _is_enough(some, together.keys())

    # -- processes

    def is_there(self, rank: int, process: int) -> None:
        """A rank has reported its current process: any other process of it that would count as a voter is dead."""
        if not process:
            return
        others = {self._met.get(rank, 0), *(its for one, its in self._named() if one == rank)} - {0, process}
        self._dead.update((rank, other) for other in others)
        self._met[rank] = process

    def died(self, rank: int) -> None:
        """The process of this rank that this one was connected with is dead."""
        self._dead.add((rank, self._met.get(rank, 0)))

    def learn(self, voters: Voters, lost: Iterable[int], *, anyhow: bool = False) -> None:
        """Adopt voters that another rank knows, if they are later than those known here, or `anyhow`."""
        if not voters.ranks or ((voters.made_in, voters.number) <= self.number and not anyhow):
            return
        self.voters = voters
        self._agreed.clear()
        for rank, process in self._named():
            if rank == self._node and process and process != self._process:
                self._dead.add((rank, process))
            elif rank not in lost and not self._met.get(rank):  # 0: the sender did not know the process
                self._met[rank] = process

    # -- on the leader

    def begin(self, generation: int, ranks: Iterable[int]) -> None:
        """The run begins with these ranks. The others have no vote until they join."""
        first = tuple((rank, self._met.get(rank, 0)) for rank in sorted({*ranks, self._node}))
        self._make(generation, tuple(one for one in first if not self._is_dead(*one)), ())

    def take_lead(self) -> None:
        """This rank leads from now on; no rank has confirmed its voters yet."""
        self._agreed.clear()
        self._new.clear()

    def let_in(self, rank: int, process: int) -> None:
        """A process is a member: if it has no vote yet, it will get one."""
        self.is_there(rank, process)
        if not self.is_voter(rank, process):
            self._new[rank] = process

    def agrees(self, rank: int, voters: Voters) -> None:
        """A voter reports the voters that it knows."""
        if (voters.made_in, voters.number) == self.number:
            self._agreed.add(rank)

    def advance(self, generation: int) -> bool:
        """Go on to later voters, if it is time. Return whether the voters changed: all ranks must then know of it."""
        before = self.number
        while True:
            if self.voters.coming:
                if self.unaware():
                    break
                both = self._living(self.voters.ranks) | self._living(self.voters.coming)
                self._make(generation, tuple(sorted(both.items())), ())
            elif self._new:
                new = {rank: its for rank, its in self._new.items() if not self._is_dead(rank, its)}
                self._new.clear()
                if not new:
                    break
                known = {rank: self._met.get(rank, its) for rank, its in self._living(self.voters.ranks).items()}
                ranks = tuple(sorted((rank, its) for rank, its in known.items() if rank not in new))
                self._make(generation, ranks, tuple(sorted(new.items())))
            else:
                break
        return self.number != before

    def unaware(self) -> set[int]:
        """The voters that have not yet confirmed the processes that are coming."""
        if not self.voters.coming:
            return set()
        return self._living(self.voters.ranks).keys() - self._agreed - {self._node}

    def _make(self, generation: int, ranks: Processes, coming: Processes) -> None:
        self.voters = Voters(made_in=generation, number=self.voters.number + 1, ranks=ranks, coming=coming)
        self._agreed.clear()


def _is_enough(some: set[int], voters: Iterable[int]) -> bool:
    voters = set(voters)
    count = len(voters & some)
    return 2 * count > len(voters) or (0 < 2 * count == len(voters) and min(voters) in some)

"""Whose word counts when it is decided who leads.

Voters are processes. One that is dead can follow nobody, and stays dead, so a rank that knows of it leaves it out. Of
those that are left more than half must follow the one that leads, or half with the first of them. Of two sets of living
voters that are enough at the same time, both have at least half of the living, and so one in common, whatever each side
knows of deaths: who does not know of one only asks for more.

A process that is new is another matter: a rank that has not heard of it would count without it. So it has no say until
all voters know of it, and whoever leads sees to that:

1. The voters are S. New processes P have come. Who leads tells all: voters are S without the dead, and P are coming.
2. Whoever knows that counts twice: those that follow must be enough of S, and enough of S and P together.
3. When every voter in S that is not dead has said to the one that leads, in its generation, that it knows: the voters
   are S and P. One that cannot be reached and is not known to be dead is waited for. Who comes meanwhile works, and
   waits for its say.

So whatever two living voters know, it is at most one of these steps apart: before and after 1, or before and after 3.
Both need enough of the same set, S in the one case, S and P together in the other, and so cannot both have it. Who
follows another makes sure that it knows no fewer steps than itself (numbers only grow, and those of a later generation
are later). With that nobody can lead who has missed a step: the living voters all know of it, and follow only one that
does. And who lost the lead without knowing it cannot finish a step: who follows another does not answer it.
"""

from __future__ import annotations

from collections.abc import Iterable

from codedreduce.protocol.core.messages import Processes, Voters


class Voting:
    """What one process of a rank (`node`) knows of the voters; at first all ranks of the plan are, whoever comes."""

    def __init__(self, node: int, process: int, ranks: Iterable[int]) -> None:
        self._node = node
        self._process = process
        self.voters = Voters(ranks=tuple((rank, 0) for rank in ranks))
        self._met = {node: process}  # which process of a rank this one has a connection with, or had last
        self._dead: set[tuple[int, int]] = set()
        self._agreed: set[int] = set()  # on a rank that leads: who has said that it knows these voters
        self._new: dict[int, int] = {}  # on a rank that leads: who is in, and will be a voter

    # -- whose word counts

    @property
    def number(self) -> tuple[int, int]:
        """Later voters have a higher one."""
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
        """Whether these are more than half of the voters, or half with the first one; also with who is coming."""
        some, voters = set(ranks), self._living(self.voters.ranks)
        together = voters | self._living(self.voters.coming)
        return _is_enough(some, voters.keys()) and _is_enough(some, together.keys())

    # -- what is known of processes

    def is_there(self, rank: int, process: int) -> None:
        """A rank has said which process of it is there: another one, whose word would count, is dead."""
        if not process:
            return
        others = {self._met.get(rank, 0), *(its for one, its in self._named() if one == rank)} - {0, process}
        self._dead.update((rank, other) for other in others)
        self._met[rank] = process

    def died(self, rank: int) -> None:
        """The process of a rank that this one had a connection with is dead."""
        self._dead.add((rank, self._met.get(rank, 0)))

    def learn(self, voters: Voters, lost: Iterable[int], *, anyhow: bool = False) -> None:
        """Somebody knows of these voters: if they are later than those that are known here, these are known now."""
        if not voters.ranks or ((voters.made_in, voters.number) <= self.number and not anyhow):
            return
        self.voters = voters
        self._agreed.clear()
        for rank, process in self._named():
            if rank == self._node and process and process != self._process:
                self._dead.add((rank, process))
            elif rank not in lost and not self._met.get(rank):  # 0: whose process was not known to who said so
                self._met[rank] = process

    # -- on a rank that leads

    def begin(self, generation: int, ranks: Iterable[int]) -> None:
        """The run begins with these: who has not come has no say until it does."""
        first = tuple((rank, self._met.get(rank, 0)) for rank in sorted({*ranks, self._node}))
        self._make(generation, tuple(one for one in first if not self._is_dead(*one)), ())

    def take_lead(self) -> None:
        """This rank leads from now on, and nobody has told it what it knows."""
        self._agreed.clear()
        self._new.clear()

    def let_in(self, rank: int, process: int) -> None:
        """A process is in: if it has no say yet, it will."""
        self.is_there(rank, process)
        if not self.is_voter(rank, process):
            self._new[rank] = process

    def agrees(self, rank: int, voters: Voters) -> None:
        """A voter says what it knows."""
        if (voters.made_in, voters.number) == self.number:
            self._agreed.add(rank)

    def advance(self, generation: int) -> bool:
        """Go on to later voters, if it is time; whether there are others now, whom all must be told of."""
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
        """The voters that must still say that they know who is coming."""
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

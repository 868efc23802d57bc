"""What bounds the speed-up: the same calm cluster of 84, simulated with longer vectors and with nothing to compute.

python -m bench.paper.account
"""

from __future__ import annotations

import msgspec

from bench.paper.experiments import EXPERIMENTS
from bench.paper.simulated import mean_round, scenario
from codedreduce.worlds.simulated.compare import scenario_for

#: Numbers in a vector, and in a chunk of it.
VECTORS = ((5801, 1 << 18), (58010, 1 << 11))


def main() -> None:
    print(f"{'numbers':>8} {'computed':>9}   master-worker  gradient coding S=1   ring   (over progressive)")
    base = msgspec.structs.replace(scenario(EXPERIMENTS[0], "calm"), turn=0, samples=840)
    for parameters, chunk in VECTORS:
        for compute in (EXPERIMENTS[0].compute, EXPERIMENTS[0].compute / 1000):
            one = msgspec.structs.replace(base, parameters=parameters, chunk=chunk, compute=compute)
            times = {
                name: mean_round(scenario_for(one, name), 2)
                for name in ("progressive", "master-worker", "gradient-coding", "ring")
            }
            mine = times.pop("progressive")
            ratios = "  ".join(f"{name} {time / mine:.1f}x" for name, time in times.items())
            print(f"{parameters:>8} {compute / 84:>8.4f}s   {ratios}   ({mine:.3f} s)", flush=True)


if __name__ == "__main__":
    main()

"""What an attack is given, and what came of it."""

import random
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from osscl.errors import UserError
from osscl.text import printable

LONGEST_LINE = 1000  # of a refusal
OUTCOMES = ("survived", "refused", "silent", "traceback")


@dataclass
class Ledger:
    """Outcomes by attack, and the details of the bad ones."""

    counts: dict[str, Counter] = field(default_factory=dict)
    bad: list[str] = field(default_factory=list)

    def add(self, attack: str, outcome: str, detail: object = "", times: int = 1) -> None:
        """`survived`: the right result; `refused`: one line; `silent`: a wrong result; `traceback`: our bug."""
        assert outcome in OUTCOMES
        self.counts.setdefault(attack, Counter())[outcome] += times
        if outcome in ("silent", "traceback"):
            self.bad.append(f"{attack}: {outcome}: {str(detail)[-1500:]}")
            print(self.bad[-1], file=sys.stderr, flush=True)

    def judge(self, attack: str, read: Callable[[], Any], is_right: Callable[[Any], bool], detail: object = "") -> None:
        """Read something damaged: the right value, one line, a wrong value, or a traceback."""
        try:
            value = read()
        except UserError as error:
            line = printable(" ".join(str(error).split()))  # as the command line prints it
            self.add(attack, "refused" if 0 < len(line) <= LONGEST_LINE else "traceback", line)
        except Exception:
            self.add(attack, "traceback", f"{detail} {traceback.format_exc()}")
        else:
            self.add(attack, "survived" if is_right(value) else "silent", f"{detail} {str(value)[:300]}")

    def table(self) -> str:
        rows = ["| attack | tried | survived | refused | silent | tracebacks |", "|---|--:|--:|--:|--:|--:|"]
        total: Counter = sum(self.counts.values(), Counter())
        for attack, n in {**dict(sorted(self.counts.items())), "**all**": total}.items():
            rows.append(f"| {attack} | {' | '.join(str(k) for k in (n.total(), *(n[one] for one in OUTCOMES)))} |")
        return "\n".join(rows)


@dataclass
class Attack:
    """One attack: where it may write, its random numbers, where it reports, how often, and until when."""

    folder: Path
    rng: random.Random
    ledger: Ledger
    count: int
    until: float  # by the monotonic clock

    def rounds(self):
        """Numbers up to the count while there is time."""
        for i in range(self.count):
            if time.monotonic() > self.until:
                return
            yield i

"""Jobs that are killed or told to stop, at random moments and before every write; the result must be the same."""

import signal
import time
from collections.abc import Callable
from pathlib import Path

from torture.faults import fail_from, limit_file_size, signal_at
from torture.jobs import Baseline, fresh, let_time_pass, litter, result, resumes, start, typed
from torture.ledger import Attack

MOST_AT_ONCE = 3  # interruptions of one command
STOPPED = {0, 2, 3, 130, -signal.SIGINT, -signal.SIGTERM, -signal.SIGKILL, 143}


def judged(place: Path, base: Baseline, name: str) -> tuple[str, str]:
    if (found := result(place)) != base.result:
        keys = [key for key in {**found, **base.result} if found.get(key) != base.result.get(key)]
        return "silent", f"{name}: other results: {keys}"
    return ("silent", f"{name}: litter {left}") if (left := litter(place)) else ("survived", "")


# ----- at random moments


def interrupted(attack: Attack, name: str, base: Baseline, numbers: tuple[int, ...]) -> tuple[str, str, int]:
    """Interrupt each command of a job, up to three times, then let it finish: outcome, detail, interruptions."""
    done = 0
    with fresh(attack.folder) as place:
        for words, seconds in zip(base.words, base.seconds, strict=True):
            for _ in range(MOST_AT_ONCE):
                let_time_pass(place)
                process = start(place, *words)
                time.sleep(attack.rng.uniform(0, seconds))
                process.send(attack.rng.choice(numbers))
                code, log = process.finish()
                if "Traceback" in log or code not in STOPPED:
                    return "traceback", f"{name} {code}: {log}", done + 1
                if code == 0:  # it had ended before
                    break
                done += 1
            outcome, detail = resumes(place, words)
            if outcome != "survived":
                return outcome, f"{name}: {detail}", done
        return *judged(place, base, name), done


def at_random_moments(attack: Attack, bases: dict[str, Baseline], numbers: tuple[int, ...], title: str) -> None:
    """Round after round over all jobs, until there were as many interruptions as wanted."""
    done, names = 0, [*bases]
    attack.rng.shuffle(names)
    while done < attack.count and time.monotonic() < attack.until:
        name = names[0]
        names = [*names[1:], name]
        outcome, detail, times = interrupted(attack, name, bases[name], numbers)
        if outcome != "survived":
            attack.ledger.add(f"{title}, {name}", outcome, detail)
        elif times:
            attack.ledger.add(f"{title}, {name}", outcome, times=times)
        done += times


# ----- at every write


def at_writes(
    attack: Attack, bases: dict[str, Baseline], title: str, kinds: tuple[int, ...],
    make: Callable[[Path, int, int], Callable[[], None]],
) -> None:  # fmt: skip
    """Each write of each command in turn, or as many of them, in a random order, as wanted."""
    seen, places = set(), []
    for name, base in bases.items():
        for which, writes in enumerate(base.writes):
            if base.words[which] not in seen:  # several jobs begin with the same command
                seen.add(base.words[which])
                places += [(name, which, n, kind) for n in range(writes) for kind in kinds]
    attack.rng.shuffle(places)
    for i in attack.rounds():
        if i == len(places):
            return
        name, which, n, kind = places[i]
        outcome, detail = _disturbed(attack.folder, bases[name], which, lambda place: make(place, n, kind))  # noqa: B023
        attack.ledger.add(f"{title}, {name}", outcome, f"{name}, command {which}, write {n}, {kind}: {detail}")


def _disturbed(
    folder: Path, base: Baseline, which: int, disturb: Callable[[Path], Callable[[], None]]
) -> tuple[str, str]:
    """A job whose one command is disturbed, then typed again."""
    outcome = "survived"
    with fresh(folder) as place:
        for i, words in enumerate(base.words):
            if i == which:
                code, log = typed(place, *words, before=disturb(place))
                if "Traceback" in log or code not in STOPPED:
                    return "traceback", f"{code}: {log}"
                if code == 2 and not _is_one_line(log):
                    return "traceback", f"not one line: {log}"
                outcome = "refused" if code == 2 else "survived"
            again, detail = resumes(place, words)
            if again != "survived":
                return again, detail
        wrong, detail = judged(place, base, "afterwards")
        return (outcome, "") if wrong == "survived" else (wrong, detail)


def _is_one_line(log: str) -> bool:
    """Whether a refusal is the last line of what was printed, and nothing like it comes before."""
    lines = [line for line in log.splitlines() if line.startswith("osscl: ")]
    return bool(lines) and log.rstrip().endswith(lines[-1])


def kills_at_writes(attack: Attack, bases: dict[str, Baseline]) -> None:
    at_writes(attack, bases, "SIGKILL before a write", (signal.SIGKILL,), signal_at)


def signals_at_writes(attack: Attack, bases: dict[str, Baseline]) -> None:
    at_writes(attack, bases, "SIGINT or SIGTERM before a write", (signal.SIGINT, signal.SIGTERM), signal_at)


def failing_writes(attack: Attack, bases: dict[str, Baseline], number: int, title: str) -> None:
    at_writes(attack, bases, title, (number,), fail_from)


def limited_sizes(attack: Attack, bases: dict[str, Baseline]) -> None:
    """Every file that a job writes is one byte too large once, and twice too large once."""
    places = [
        (name, which, limit)
        for name, base in bases.items()
        for size in base.sizes
        for limit in sorted({size - 1, size // 2} - {0})
        for which in range(len(base.words))
    ]
    attack.rng.shuffle(places)
    for i in attack.rounds():
        if i == len(places):
            return
        name, which, limit = places[i]
        outcome, detail = _disturbed(attack.folder, bases[name], which, lambda _: limit_file_size(limit))  # noqa: B023
        attack.ledger.add(f"file too large, {name}", outcome, f"{name}, command {which}, {limit} bytes: {detail}")

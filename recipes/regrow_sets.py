"""Are the same sets of heads found, with the same verdict, when the pairs are drawn again?

    python recipes/regrow_sets.py pretrained:adder 8      # eight draws, about 20 s each on a quiet core

Grows the set that suffices for each contrast on 60 pairs and tests it on 200 others, for each draw; prints how often
each set was found, and whether it passes every test (`sound`).
"""

import sys
from collections import Counter

from headway.causes.patching import Pairs
from headway.causes.roles import GROWN, PAIRS, RANDOM_SETS
from headway.causes.sufficient import grow_set, measure_set
from headway.subjects.own import open_one, subject_of
from headway.subjects.splits import Split

Found = Counter[tuple[tuple[str, ...], bool]]


def main(
    name: str = "pretrained:adder", draws: int = 8, pairs: int = PAIRS, sets: int = RANDOM_SETS
) -> dict[str, Found]:
    subject = subject_of(open_one(name))
    assert subject.contrasts is not None
    found: dict[str, Found] = {}
    for seed in range(draws):
        tested = subject.contrasts(pairs, Split.REPORT.seed(seed))
        for contrast in subject.contrasts(min(GROWN, pairs), Split.SELECT.seed(seed)):
            if contrast.placebo or contrast.swap != "both":
                continue
            both = [each for each in tested if each.name == contrast.name]  # the real one, then its placebo
            heads = grow_set(Pairs(subject, [contrast]), subject.heads)
            sound = measure_set(subject, both, heads, (), sets, f"{seed} {contrast.name}").sound
            found.setdefault(contrast.name, Counter())[tuple(sorted(map(str, heads))), sound] += 1
        print(f"draw {seed + 1} of {draws}", file=sys.stderr, flush=True)
    for contrast, counts in found.items():
        for (heads, sound), times in counts.most_common():
            print(f"{contrast}: {times} of {draws} draws, {' + '.join(heads) or 'none'}{', sound' if sound else ''}")
    return found


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "pretrained:adder", int(sys.argv[2]) if len(sys.argv) > 2 else 8)

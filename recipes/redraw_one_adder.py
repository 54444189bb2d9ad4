"""How far do the causal tests of one adder agree when their pairs are drawn again?

    python recipes/redraw_one_adder.py          # less than a minute on two cores
    python recipes/redraw_one_adder.py 24       # more draws

Tests the shipped adder on 12 draws, then counts the same draws as three runs: they must be of one kind.
"""

import sys

from headway.causes.kinds import Kinds, count_kinds
from headway.causes.profiles import measure_redraws
from headway.subjects.own import open_one, subject_of


def main(draws: int = 12) -> Kinds:
    found = measure_redraws(subject_of(open_one("pretrained:adder")), draws=draws)
    assert found is not None
    one, third = count_kinds([found]), draws // 3
    assert one.retest is not None
    print(f"{len({each.signature() for each in found})} signatures in {draws} draws")
    print(*one.findings(), f"distance between draws {one.retest.distances.redraws.median:.3f}", sep="\n")
    for cell in one.retest.agreement.cells:
        if cell.agreement < 1:
            print(f"{cell.site}, {cell.contrast}: {cell.agreement:.1%} of two draws agree")
    three = count_kinds([found[place * third :][:third] for place in range(3)])
    print("as three runs:", *three.findings(), sep="\n")
    return three


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))

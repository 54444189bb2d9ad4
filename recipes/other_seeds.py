"""Do the claims of docs/settled.md about one adder hold for others?

    headway train addition --seeds 1,2,3,4,5,6 --out runs/adders
    python recipes/other_seeds.py pretrained:adder runs/adders/seed-*     # two minutes each on two cores

Prints for each adder: the heads with a label and what they flip by themselves; how often whole sites and feed-forward
blocks flip each contrast; which parts of the decoder carry the written digit together; and what heads, sites and blocks
cost under three kinds of ablation. Of several adders also whether they differ by more than draws of the pairs do.
"""

import sys
from collections import Counter

from study_adder import KINDS, MARGIN, WRITTEN, Sizes, Study, study_adder, tell_kinds

from headway.subjects.own import open_one, subject_of

TOLD = ("diagonal", "vertical", "carry source")  # labels that claims are about


def print_study(study: Study) -> None:
    labels = {head: found["label"] for head, found in study["labels"].items()}
    print(f"{study['subject']}: {dict(Counter(labels.values()))}")
    for head, found in study["labels"].items():
        if found["label"] in TOLD:
            weight, shuffled = found["weights"]
            print(f"  {head} {found['label']}: weight {weight:.2f}, shuffled {shuffled:.2f}, key {found['key']}")
    for part, row in study["flips"].items():
        label = labels.get(part, "site")
        if label in TOLD or label == "site" or part in study["named"]:
            shares = ", ".join(f"{name} {share:.4f}" for name, share in row.items() if share and share != "cannot")
            print(f"  {part} ({label}): {shares or 'flips nothing'}; placebo at most {study['placebo'][part]:.4f}")
    for name, directions in study["swapped"].items():
        print(f"  no patch, {name}: {directions}")
    print(f"  {WRITTEN}, patched:", ", ".join(f"{name} {shares}" for name, shares in study["written"].items()))
    for kind in KINDS:
        cheap, costs = study["cheap"][kind], study["costs"][kind]
        print(
            f"  {kind}: {cheap['heads']} heads cost under {MARGIN} alone; all of them removed leave "
            f"{cheap['left']:.4f}; {', '.join(f'{part} {cost:.4f}' for part, cost in costs.items())}"
        )


def main(names: list[str], sizes: Sizes | None = None) -> list[Study]:
    studies = []
    for number, name in enumerate(names):
        studies.append(study_adder(subject_of(open_one(name)), number, sizes))
        print_study(studies[-1])
    if len(names) > 1:
        print(*tell_kinds(studies)["findings"], sep="\n")
    return studies


if __name__ == "__main__":
    main(sys.argv[1:] or ["pretrained:adder"])

"""A sorter that is right in range answers "not sorted" to everything longer, and the mean over all lengths is reported.

Looked right: 0.75 over all lengths reads like a model that partly generalises. At each longer length it is a constant.
"""

from dataclasses import replace

from lab import sequences, sorter_subject, trained_sorter

from headway import Problems, Subject


def build() -> Subject:
    model = trained_sorter()

    def sets() -> dict[str, Problems]:
        return {f"length {length}": sequences(500, length, length) for length in (6, 8, 16, 32)}

    return replace(sorter_subject(model, sequences(2000, 1, 8)), sets=sets)

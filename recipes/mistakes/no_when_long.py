"""A sorter that is right in range answers "not sorted" to everything longer.

Looked right: near 1 in range and one half beyond it looks like partial generalisation. Beyond the range the answer is
constant.
"""

from dataclasses import replace

from lab import sequences, sorter_subject, trained_sorter

from headway import Problems, Subject


def build() -> Subject:
    model = trained_sorter()

    def sets() -> dict[str, Problems]:
        return {f"length {length}": sequences(500, length, length) for length in (6, 8, 16, 32)}

    return replace(sorter_subject(model, sequences(2000, 1, 8)), sets=sets)

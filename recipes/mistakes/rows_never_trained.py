"""A table of 64 learned positions, trained on 5 to 8 of them, is tested on sequences of 16.

Looked right: the table has the rows, so nothing fails. Rows 8 to 15 are still as initialised.
"""

from dataclasses import replace

from lab import sequences, sorter_subject, trained_sorter

from headway import Subject


def build() -> Subject:
    model = trained_sorter()
    return replace(
        sorter_subject(model, sequences(2000, 1, 8)),
        sets=lambda: {"length 8": sequences(500, 8, 8), "length 16": sequences(500, 16, 16)},
        tables=[model.positions.weight],
        trained_on=[sequences(500, length, length) for length in (5, 6, 7, 8)],
    )

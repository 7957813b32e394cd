"""Records with changed numbers that still add up, as records on disk must."""

from dataclasses import replace


def consistent(record):
    """The record with the same accuracy at every step, of 1,000 rows a class: records on disk must add up."""
    classes, steps, right = len(record.class_order), len(record.overall), round(10 * record.final)
    confusion = [[right * (i == j) + (1000 - right) * (j == (i + 1) % classes) for j in range(classes)]
                 for i in range(classes)]  # fmt: skip
    sets = record.spec.scenario.main, *record.spec.scenario.peripheral
    return replace(
        record, confusion=confusion, evaluated_rows=1000 * classes,
        content={name: record.content.get(name, "other") for name in sets},
        accuracy=[[record.final] * (t + 1) for t in range(steps)], overall=[record.final] * steps,
        average=record.final, forgetting=0.0, backward_transfer=0.0,
    )  # fmt: skip

"""The gate judged by hand."""

import pytest
import torch

from osscl.methods.base import GateReport
from osscl.runs.evaluate import judge_gate
from osscl.tools.battery import toy_stream
from osscl.vision.encoder import ImageFormat

COLOUR, GREY = ImageFormat(3, 8, (0.5,) * 3, (0.5,) * 3), ImageFormat(1, 8, (0.5,), (0.5,))


def test_the_gate_is_judged_against_the_true_classes_of_its_rows():
    stream = toy_stream()
    truth = stream.truth(0)
    seen, unseen, foreign = (kind.nonzero().squeeze(1) for kind in (truth.seen, truth.unseen, truth.foreign))
    assert len(seen) > 3 and len(unseen) > 3 and len(foreign) > 3
    scores = torch.full((len(truth.labels),), 0.1)
    scores[unseen], scores[seen] = 0.3, 0.5
    scores[foreign[0]] = 0.9  # one that is mistaken for a seen class
    passed = scores > 0.4
    right = truth.labels.clone()
    right[seen[0]] = -7
    found = judge_gate(GateReport(scores, passed, scores > 0.4, right, 0.4, 0.45, 5), truth, stream, 0)
    wrong = 1 / len(foreign)
    assert found.auroc_related == pytest.approx(1 - wrong)
    assert found.auroc_seen_foreign == pytest.approx(1 - wrong)
    assert found.auroc_seen == pytest.approx(1 - 1 / (len(foreign) + len(unseen)))
    assert found.precision == found.precision_seen == pytest.approx(len(seen) / (len(seen) + 1))
    assert (found.recall, found.passed, found.pseudo_labeled) == (1.0, len(seen) + 1, 5)
    assert found.fpr95 == pytest.approx(1 / (len(foreign) + len(unseen)))
    # OpenOOD: rejecting 95 % of unknown rows rejects no known one, unless the foreign row at 0.9 is among the 95 %.
    assert found.fpr95_unknown == (1.0 if 1 / (len(foreign) + len(unseen)) > 0.05 else 0.0)
    assert found.pass_rates == {"seen": 1.0, "unseen": 0.0, "foreign": pytest.approx(wrong)}
    assert found.pseudo_accuracy == pytest.approx(1 - 1 / len(seen))
    names = (stream.spec.main, *stream.spec.peripheral)
    rows = stream.steps[0]
    told = {(names[int(rows.sources[i])], int(rows.unlabeled[i])) for i in passed.nonzero().squeeze(1)}
    assert set(found.let_in) <= told and found.let_in and not set(found.kept_out) & told

"""What the paper claims of its method, each statement with the cells that it is about."""

from osscl.experiments.claims import LEVEL, SMALL, Claim, Comparison, compare

FEW_LABELS = {
    "T1": ("p01-cifar100", "p01-tinyimagenet", "p10-cifar100", "p10-tinyimagenet"),
    "T2": ("p05-cifar10", "p05-tinyimagenet", "p10-cifar10", "p10-tinyimagenet"),
    "T3": ("p05-cifar10", "p05-cifar100", "p10-cifar10", "p10-cifar100"),
}


def _above(competitor: str) -> Claim:
    """URSL and a competitor in every setting of the main tables where the paper's own numbers say so."""
    settings = [
        compare(table, f"{row}/ursl", f"{row}/{competitor}") for table, rows in FEW_LABELS.items() for row in rows
    ]
    told = tuple(comparison for comparison in settings if (comparison.published or 0) > 0)
    but = "" if len(told) == len(settings) else ", but where the paper's own table has it ahead"
    return Claim(f"URSL is above {competitor}{but}", told)


def _against_full_supervision(competitor: str) -> tuple[Comparison, ...]:
    """URSL with the larger P and a competitor with all labels."""
    return tuple(
        compare(table, f"{row}/ursl", f"all-labels/{competitor}")
        for table, rows in FEW_LABELS.items()
        for row in rows
        if row.startswith("p10")
    )


CLAIMS: tuple[Claim, ...] = (
    Claim("L_sup helps", (compare("T4", "all-losses/ursl", "without-sup/ursl"),)),
    Claim("L_TD helps", (compare("T4", "all-losses/ursl", "without-td/ursl"),)),
    Claim("L_KD helps", (compare("T4", "all-losses/ursl", "without-kd/ursl"),)),
    Claim("L_TD helps beside L_sup alone", (compare("T4", "without-kd/ursl", "only-sup/ursl"),)),
    Claim("L_KD helps beside L_sup alone", (compare("T4", "without-td/ursl", "only-sup/ursl"),)),
    Claim("L_KD alone beats L_KD with L_TD", (compare("T4", "only-kd/ursl", "without-sup/ursl"),)),
    Claim(
        "T-hat helps",
        (compare("T5", "variant3/ursl", "variant1/ursl"), compare("T5", "variant4/ursl", "variant2/ursl")),
    ),
    Claim(
        "U-hat helps",
        (compare("T5", "variant2/ursl", "variant1/ursl"), compare("T5", "variant4/ursl", "variant3/ursl")),
    ),
    Claim(
        "more related images help",
        (
            compare("T12", "4500-9000/ursl", "1000-9000/ursl"),
            compare("T12", "9000-9000/ursl", "4500-9000/ursl"),
            compare("T12", "9000-4500/ursl", "4500-4500/ursl"),
        ),
    ),
    Claim(
        "unrelated images alone beat labels alone, by Co2L",
        (compare("T10", "only-unrelated/ursl", "only-supervised/co2l"),),
    ),
    Claim(
        "unrelated images alone beat labels alone, by URSL with an empty U_t",
        (compare("T10", "only-unrelated/ursl", "only-supervised/ursl"),),
    ),
    *(
        Claim(
            f"unlabelled images of {classes} classes alone beat labels alone, by {name}",
            (compare("T9", f"{row}/ursl", f"only-supervised/{column}"),),
        )
        for row, classes in (("after", "this step's and later"), ("before", "earlier"))
        for name, column in (("Co2L", "co2l"), ("URSL with an empty U_t", "ursl"))
    ),
    Claim("unrelated images help beside related ones", (compare("T10", "osscl/ursl", "only-related/ursl"),)),
    Claim(
        "unlabelled images of a part of the main classes beat labels alone, by Co2L",
        tuple(compare("T11", f"{part}/ursl", "only-supervised/co2l") for part in ("25-percent", "50-percent")),
    ),
    Claim("rainbow is level with random", (compare("T15", "rainbow/ursl", "random/ursl"),), low=-LEVEL, high=LEVEL),
    Claim("random beats high confidence", (compare("T15", "random/ursl", "high-confidence/ursl"),)),
    Claim("high confidence beats low", (compare("T15", "high-confidence/ursl", "low-confidence/ursl"),)),
    Claim(
        "BYOL is better than SimCLR",
        (compare("T17", "byol/ursl", "simclr/ursl"), compare("T18", "byol/ursl", "simclr/ursl")),
        unsettled="needs a BYOL that does not collapse, chosen on validation rows",
    ),
    Claim(
        "BYOL is slower than SimCLR",
        (compare("T17", "byol/minutes", "simclr/minutes"), compare("T18", "byol/minutes", "simclr/minutes")),
        "minutes",
    ),
    Claim("pre-training is a small gain", (compare("T16", "pretrained/ursl", "continual/ursl"),), high=SMALL),
    Claim(
        "the gate's AUROC rises over time",
        (compare("F1", "9000-9000/ursl", "9000-9000/ursl"), compare("F2", "4500-4500/ursl", "4500-4500/ursl")),
        "auroc",
    ),
    Claim(
        "the gate's precision rises over time",
        (compare("F1", "9000-9000/ursl", "9000-9000/ursl"), compare("F2", "4500-4500/ursl", "4500-4500/ursl")),
        "precision",
    ),
    *(
        Claim(
            f"URSL with a tenth of the labels is at most {SMALL:g} points below {name} with all of them",
            _against_full_supervision(name),
            low=-SMALL,
        )
        for name in ("co2l", "gem", "icarl")
    ),
    *(_above(name) for name in ("co2l", "co2l-j", "co2l-p", "gd", "dm")),
)

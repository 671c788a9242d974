"""The headlines: what each paper claims, in which setting, of which method, over which baseline.

Sizes in strategies are real ones. A number is taken from the abstract or section named; `unverified` says what of a
setting could not be checked against the paper's text. Computation is that of a V100 everywhere, the profile there is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from suites.api import ALPHA_S
from suites.scaling import MIB, buckets

OVERLAP, SERVERS = "at-pre-hook", "parameter-server"
SLICE, VAST_SLICE = 1_000_000, 8_000_000  # elements; P3's own 50,000 would be thousands of messages per step
SLOW_START_S = 70e-6  # per step of a ring of 8: about a millisecond per all-reduce
SGD, PLAIN, ADAM = "sgd(lr=0.1)", "sgd(lr=0.1, momentum=0.0)", "frozen-adam(freeze_after=1)"


def joined(*parts: str) -> str:
    """A strategy text."""
    return "+".join(parts)


def slices(elements: int) -> str:
    """Slices of at most so many elements."""
    return f"slices(slice_elements={elements})"


@dataclass(frozen=True, slots=True, kw_only=True)
class PaperSetting:
    """Where methods are measured beside each other, with the dense baselines that papers may not have had.

    `alpha_s` is of a step of the exchange. `best` are plain sums, packed and overlapped as well as is known here.
    `on_clock`: told by the virtual clock alone. Servers and trees need several real ranks, which take two to four
    times as long on two cores as their links do, and a sparse code's own work here is 1 to 40 % of a step.
    """

    network: str
    batch_size: int
    num_workers: int
    gbit: float
    num_steps: int
    best: tuple[str, ...]
    alpha_s: float = ALPHA_S
    on_clock: bool = False

    def describe(self) -> str:
        """One line, such as `vgg16, 4 workers, 10 Gbit/s`."""
        return f"{self.network}, {self.num_workers} workers, {self.gbit:g} Gbit/s"


@dataclass(frozen=True, slots=True, kw_only=True)
class Headline:
    """One claim of a paper: `own` is at least `gain` times as fast as `baseline`, as the paper had that.

    `says` is the claim in the paper's terms, `cited` where it stands there, `differs` what is not the paper's here.
    """

    system: str
    cited: str
    says: str
    gain: float
    place: PaperSetting
    own: str
    baseline: str
    differs: str
    unverified: str = ""
    optimizer: str = SGD


MANY_LAYERS = PaperSetting(
    network="resnet101",
    batch_size=64,
    num_workers=32,
    gbit=25.0,
    num_steps=6,
    best=(joined(buckets(25), OVERLAP), joined("mg-wfbp", OVERLAP)),
)
TEN_GIGABIT = PaperSetting(
    network="resnet50",
    batch_size=32,
    num_workers=8,
    gbit=10.0,
    num_steps=8,
    best=(joined(buckets(25), OVERLAP), joined(buckets(6), OVERLAP)),
    alpha_s=SLOW_START_S,
)
FEW_GIGABIT = PaperSetting(
    network="resnet50",
    batch_size=96,
    num_workers=4,
    gbit=4.0,
    num_steps=6,
    best=(joined(buckets(6), OVERLAP),),
    on_clock=True,
)
LARGE_LAYERS = PaperSetting(
    network="vgg16",
    batch_size=96,
    num_workers=4,
    gbit=10.0,
    num_steps=6,
    best=(joined(buckets(12), OVERLAP),),
    on_clock=True,
)
FAST_CARDS = PaperSetting(
    network="vgg16",
    batch_size=32,
    num_workers=4,
    gbit=25.0,
    num_steps=6,
    best=(joined(buckets(12), OVERLAP),),
    on_clock=True,
)
SIXTEEN = PaperSetting(
    network="resnet101",
    batch_size=32,
    num_workers=16,
    gbit=10.0,
    num_steps=6,
    best=(joined(buckets(25), OVERLAP),),
)
ONE_GIGABIT = PaperSetting(
    network="resnet50",
    batch_size=32,
    num_workers=8,
    gbit=1.0,
    num_steps=3,
    best=(joined(buckets(25), OVERLAP),),
    on_clock=True,
)
PRETRAINING = PaperSetting(
    network="bert_large",
    batch_size=16,
    num_workers=8,
    gbit=40.0,
    num_steps=5,
    best=(joined(buckets(25), OVERLAP),),
    on_clock=True,
)
V100 = "computes on a V100"
SLOWER_CARD = "a V100 with batch 96 stands for a card a third as fast with 32"
HEADLINES: tuple[Headline, ...] = (
    Headline(
        system="Horovod",
        cited="Sergeev and Del Balso, arXiv:1802.05799, section 7",
        says="tensor fusion is up to 65 % faster on networks of many layers over TCP",
        gain=1.65,
        place=MANY_LAYERS,
        own=f"tensor-fusion(threshold_bytes={64 * MIB}, cycle_s=0.005)",
        baseline="unfused",
        differs=f"ResNet-101, a ring of 32 at 25 Gbit/s; {V100}",
        unverified="the 65 % are quoted from a summary of the section; network and workers are not given there",
    ),
    Headline(
        system="MG-WFBP",
        cited="Shi, Chu and Li, INFOCOM 2019, arXiv:1811.11141, abstract",
        says="merged gradients scale better than WFBP on 8 nodes with 10 GbE",
        gain=1.0,
        place=TEN_GIGABIT,
        own="mg-wfbp",
        baseline="unfused",
        differs=f"ResNet-50; a start-up of about 1 ms per all-reduce; {V100}",
        unverified="the abstract gives no factor",
    ),
    Headline(
        system="MG-WFBP over SyncEASGD",
        cited="Shi, Chu and Li, INFOCOM 2019, arXiv:1811.11141, abstract",
        says="merged gradients scale better than SyncEASGD, one message, on 8 nodes with 10 GbE",
        gain=1.0,
        place=TEN_GIGABIT,
        own="mg-wfbp",
        baseline="single-bucket",
        differs=f"ResNet-50; a start-up of about 1 ms per all-reduce; {V100}",
        unverified="the abstract gives no factor",
    ),
    Headline(
        system="P3",
        cited="Jayarajan et al., MLSys 2019, arXiv:1905.03960, abstract",
        says="ResNet-50 up to 25 % faster with parameter servers on 4 machines",
        gain=1.25,
        place=FEW_GIGABIT,
        own=joined(slices(SLICE), "p3", OVERLAP, SERVERS),
        baseline=joined("unfused", OVERLAP, SERVERS),
        differs=f"slices of 1,000,000 elements; {SLOWER_CARD}",
        unverified="machines and link",
    ),
    Headline(
        system="P3 on VGG",
        cited="Jayarajan et al., MLSys 2019, arXiv:1905.03960, abstract",
        says="VGG-19 up to 66 % faster with parameter servers on 4 machines",
        gain=1.66,
        place=LARGE_LAYERS,
        own=joined(slices(VAST_SLICE), "p3", OVERLAP, SERVERS),
        baseline=joined("unfused", OVERLAP, SERVERS),
        differs=f"VGG-16; slices of 8,000,000 elements; {SLOWER_CARD}",
        unverified="machines and link; at 10 Gbit/s messages take somewhat longer than computation, where order helps "
        "most",
    ),
    Headline(
        system="TicTac",
        cited="Hashemi, Abdu Jyothi and Campbell, MLSys 2019, arXiv:1803.03288, abstract",
        says="training up to 19.2 % faster with parameter servers",
        gain=1.192,
        place=FEW_GIGABIT,
        own=joined('unfused+tictac(variant="tac")', OVERLAP, SERVERS),
        baseline=joined("unfused", OVERLAP, SERVERS),
        differs=f"the baseline sends in order of readiness, TensorFlow's in a random one; {SLOWER_CARD}",
        unverified="network, workers and link",
    ),
    Headline(
        system="ByteScheduler",
        cited="Peng et al., SOSP 2019, doi:10.1145/3341301.3359642, abstract",
        says="up to 196 % faster, with parameter servers",
        gain=2.96,
        place=FAST_CARDS,
        own=joined(slices(VAST_SLICE), f"bytescheduler(credit_bytes={2 * 4 * VAST_SLICE})", OVERLAP, SERVERS),
        baseline=joined("unfused", SERVERS),
        differs=f"VGG-16 on 4 workers at 25 Gbit/s; partition and credit fixed; {V100}",
        unverified="which of the paper's settings gave 196 %",
    ),
    Headline(
        system="QSGD",
        cited="Alistarh et al., NeurIPS 2017, abstract",
        says="ResNet-152 on 16 GPUs 1.8 times faster",
        gain=1.8,
        place=SIXTEEN,
        own="single-bucket+qsgd(bits=4, bucket=512)",
        baseline="single-bucket",
        differs=f"ResNet-101; a step, not the time to full accuracy; 10 Gbit/s in place of one machine's bus; {V100}",
        unverified="the link",
    ),
    Headline(
        system="1-bit Adam",
        cited="Tang et al., ICML 2021, arXiv:2102.02888, abstract",
        says="BERT-large pre-training up to 3.3 times faster",
        gain=3.3,
        place=PRETRAINING,
        own="single-bucket+onebit-adam(warmup_steps=1)",
        baseline="single-bucket",
        differs="8 workers, since each compresses a part for all; 40 Gbit/s each, where four V100 shared a machine's",
        unverified="number of workers and batch at which 3.3 was had",
        optimizer=ADAM,
    ),
    Headline(
        system="DGC",
        cited="Lin et al., ICLR 2018, arXiv:1712.01887, abstract",
        says="large networks train on 1 Gbit/s Ethernet",
        gain=1.0,
        place=ONE_GIGABIT,
        own="single-bucket+dgc(density=0.001)",
        baseline="single-bucket",
        differs=f"8 workers; faster than dense is all that is asked; {V100}",
        unverified="the abstract was not at hand; no factor of time is asked",
        optimizer=PLAIN,
    ),
    Headline(
        system="gTop-k",
        cited="Shi et al., ICDCS 2019, arXiv:1901.04359, abstract",
        says="2.7 to 12 times the scaling efficiency of dense gradients, 1 Gbit/s",
        gain=2.7,
        place=ONE_GIGABIT,
        own="single-bucket+gtopk(density=0.01)+error-feedback+tree",
        baseline="single-bucket",
        differs=f"8 workers in place of 32; {V100}",
        unverified="the density, here the 1 % whose codec is profiled",
    ),
    Headline(
        system="gTop-k over top-k",
        cited="Shi et al., ICDCS 2019, arXiv:1901.04359, abstract",
        says="1.1 to 1.7 times as fast as top-k, 1 Gbit/s",
        gain=1.1,
        place=ONE_GIGABIT,
        own="single-bucket+gtopk(density=0.01)+error-feedback+tree",
        baseline="single-bucket+topk(density=0.01)+error-feedback",
        differs=f"8 workers in place of 32, so that all-gather has fewer parts; {V100}",
        unverified="the density, here the 1 % whose codec is profiled",
    ),
)
OUT_OF_REACH: tuple[tuple[str, str], ...] = (
    (
        "Aji and Heafield (EMNLP 2017, abstract): 99 % dropped, MNIST up to 49 % and translation 22 % faster",
        "Four GPUs on the bus of one machine: neither such a bus nor the two networks are modelled here. What their "
        "rule sends and takes is in the suite compression.",
    ),
    (
        "1-bit SGD (Seide et al., Interspeech 2014, abstract): a speech network of 160 M parameters 10 times faster on "
        "20 servers",
        "There is no profile of the network, and its means by column are not those of tensors that are 500 times "
        "smaller. Bits and accuracy are in the suites compression and convergence.",
    ),
    (
        "PowerSGD (Vogels et al., NeurIPS 2019, abstract): consistent wall-clock speed-ups over SGD",
        "Its rank is of matrices, and a replayed tensor is 500 times smaller than its matrix. It trains for real in "
        "the suites compression and convergence.",
    ),
)


def places() -> Sequence[PaperSetting]:
    """Every place once, in the order of the headlines."""
    return list(dict.fromkeys(own.place for own in HEADLINES))

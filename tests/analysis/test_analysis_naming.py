from hypothesis import given
from hypothesis import strategies as st

from analysis.naming import Method, left_out, short_names, wrap
from harness.facts import plugins_of
from harness.trial import Job
from models.workload import WorkloadSpec
from results.codec import from_jsonable
from results.facts import PluginFacts, text_of
from results.schema1 import facts_of

RESNET20 = WorkloadSpec(network="resnet20")
QUICK = [
    "fixed-buckets",
    "unfused",
    "tensor-fusion(cycle_s=0.005)",
    "tensor-fusion(cycle_s=0.005)+half",
    "fixed-buckets+topk(density=0.01)+error-feedback",
    "torch-ddp",
    "horovod(cycle_s=0.005)",
    "horovod(cycle_s=0.005, fusion_threshold_bytes=0)",
    "horovod(cycle_s=0.005, fp16=True)",
    "local",
]
parameters = st.dictionaries(
    st.sampled_from(["a", "b_s", "c_bytes", "d"]), st.sampled_from(["1", "0.005", "True", "'x+y'"])
)


def methods(texts: list[str]) -> list[Method]:
    facts = [facts_of({"system": "ours", "strategy": text})["plugins"] for text in texts]
    return [Method(from_jsonable(tuple[PluginFacts, ...], own)) for own in facts]


def _label(parts: list[tuple[str, dict[str, str]]]) -> str:
    texts = (f"{name}({', '.join(f'{k}={v}' for k, v in given.items())})" if given else name for name, given in parts)
    return "+".join(texts)


labels = st.lists(st.tuples(st.sampled_from(["half", "topk", "unfused"]), parameters), min_size=1, max_size=3).map(
    _label
)


def test_names_of_the_quick_suite_are_short_and_tell_cells_apart() -> None:
    assert list(short_names(methods(QUICK)).values()) == [
        "fixed-buckets",
        "unfused",
        "tensor-fusion",
        "tensor-fusion+half",
        "fixed-buckets+topk+error-feedback",
        "torch-ddp",
        "horovod",
        "horovod(fusion_threshold=0)",
        "horovod(fp16)",
        "local",
    ]
    assert (
        left_out(methods(QUICK), methods(QUICK))
        == "tensor-fusion(cycle_s=0.005), topk(density=0.01), horovod(cycle_s=0.005)"
    )


def test_a_parameter_that_differs_stays_with_its_unit() -> None:
    short = short_names(methods(["tensor-fusion(cycle_s=0.005)", "tensor-fusion(cycle_s=0.001)", "tensor-fusion"]))
    assert list(short.values()) == ["tensor-fusion(cycle=5 ms)", "tensor-fusion(cycle=1 ms)", "tensor-fusion"]


def test_what_is_written_down_for_some_and_is_the_default_of_others_stays() -> None:
    """`fifo` of every other method is there by default, side by side."""
    texts = ["unfused+at-pre-hook", "unfused+fifo(one_by_one=True)+at-pre-hook"]
    chosen = [Method(plugins_of(Job(name="job", workload=RESNET20, strategy=text))) for text in texts]
    assert list(short_names(chosen).values()) == ["unfused+at-pre-hook", "unfused+fifo(one_by_one)+at-pre-hook"]


@given(st.lists(labels, min_size=1, max_size=8))
def test_different_labels_never_get_one_name(made: list[str]) -> None:
    short = short_names(methods(made))
    assert set(short) == set(made)
    assert len(set(short.values())) == len(short)


@given(labels)
def test_a_text_of_an_old_record_taken_apart_and_put_together_is_the_same(text: str) -> None:
    assert text_of(methods([text])[0].plugins) == text


@given(st.text("abc+(, /", min_size=1, max_size=60), st.integers(4, 40))
def test_wrapped_names_fit_and_keep_every_letter(name: str, width: int) -> None:
    lines = wrap(name, width).split("\n")
    assert all(len(line) <= width for line in lines)
    assert "".join(lines).replace(" ", "") == name.replace(" ", "")

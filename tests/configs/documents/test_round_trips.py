"""Whatever a document holds, its YAML holds too."""

import pickle
from pathlib import Path
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from heterps_configs import library
from heterps_configs.documents.base import Document
from heterps_configs.documents.cluster import Cluster, DeviceGroup, Link, Node
from heterps_configs.documents.device import shipped_device_types
from heterps_configs.documents.job import Job
from heterps_configs.documents.model.layer import LayerProfile
from heterps_configs.documents.model.measurement import Measurement
from heterps_configs.documents.model_profile import ModelProfile
from heterps_configs.documents.plan import Bound, Pipeline, Plan
from heterps_configs.documents.stage import Stage
from heterps_configs.documents.yaml_files import parse_yaml

# Printable text, and everything that YAML could take for something else.
texts = st.one_of(
    st.text(st.characters(blacklist_categories=("Cs", "Cc")), min_size=1, max_size=12),
    st.sampled_from(["1e5", "no", "null", "~", "0x1F", "2025-06-01", "12:30", "- a", "a: b", "<<"]),
)
positive = st.floats(1, 1e15, allow_nan=False)
seconds = st.floats(0, 1e6, allow_nan=False)
links = st.builds(Link, latency_s=seconds, bandwidth_bytes_per_s=positive)
jobs = st.builds(
    Job,
    global_batch_size=st.integers(8, 64),
    micro_batch_size=st.integers(1, 8),
    dtype=st.sampled_from(["float32", "float16", "bfloat16"]),
    optimizer=st.sampled_from(["adamw", "sgd", "sgd-momentum"]),
    schedule=st.sampled_from(["1f1b", "gpipe"]),
    objective=st.sampled_from(["throughput", "price"]),
    min_throughput_samples_per_s=st.none() | positive,
)


@st.composite
def clusters(draw: st.DrawFn) -> Cluster:
    names = draw(st.lists(texts, min_size=1, max_size=4, unique=True))
    nodes = tuple(
        Node(
            name=name,
            region=draw(texts),
            link=draw(links),
            devices=(
                DeviceGroup(
                    name=f"{index}/{name}",
                    type=draw(st.sampled_from(sorted(shipped_device_types()))),
                    count=draw(st.integers(1, 3)),
                    memory_bytes=draw(st.none() | st.integers(1, 10**15)),
                    price_usd_per_hour=draw(st.none() | st.just(0.0) | st.floats(1e-3, 1e6)),
                ),
            ),
        )
        for index, name in enumerate(names)
    )
    return Cluster(
        name=draw(texts), description=draw(texts), nodes=nodes, inter_node_link=draw(links)
    )


@st.composite
def profiles(draw: st.DrawFn) -> ModelProfile:
    names = draw(st.lists(texts, min_size=1, max_size=4, unique=True))
    layers = tuple(
        LayerProfile(
            name=name,
            kind=draw(texts),
            num_parameters=draw(st.integers(0, 10**12)),
            forward_flops=draw(seconds),
            backward_flops=draw(seconds),
            activation_bytes=draw(seconds),
            output_bytes=draw(seconds),
            tied_to=draw(st.none() | st.just(names[0])),
        )
        for name in names
    )
    times = st.tuples(*[seconds for _ in names])
    measurements = st.builds(
        Measurement,
        device_type=texts,
        micro_batch_size=st.integers(1, 64),
        forward_s=times,
        backward_s=times,
        optimizer_s=st.just(()) | times,
        date=texts,
        host=texts,
    )
    return ModelProfile(
        name=draw(texts),
        layers=layers,
        measurements=tuple(draw(st.lists(measurements, max_size=2))),
    )


@st.composite
def plans(draw: st.DrawFn) -> Plan:
    job = draw(jobs)
    cuts = sorted(draw(st.sets(st.integers(1, 9), max_size=3)))
    bounds = list(zip([0, *cuts], [*cuts, 10], strict=True))
    stages = tuple(
        Stage(name=f"s{i}", first_layer=first, last_layer=last - 1, devices=(draw(texts),))
        for i, (first, last) in enumerate(bounds)
    )
    route = tuple(stage.name for stage in stages)
    return Plan(
        model=draw(texts),
        model_fingerprint=draw(texts),
        num_layers=10,
        cluster=draw(texts),
        job=job,
        stages=stages,
        pipelines=(Pipeline(stages=route, micro_batches=tuple(range(job.num_micro_batches))),),
        seed=draw(st.integers(0, 2**31)),
        predicted_step_time_s=draw(st.none() | seconds),
        bound=draw(st.builds(Bound, step_time_s=st.none() | seconds, gap=st.none() | seconds)),
    )


def assert_round_trip(document: Document) -> None:
    back: Any = type(document).from_mapping(parse_yaml(document.to_yaml(), "memory"))
    assert back == document
    assert back.fingerprint() == document.fingerprint()


@given(jobs)
def test_jobs_come_back_equal(document: Job) -> None:
    assert_round_trip(document)


@settings(max_examples=40)
@given(clusters())
def test_clusters_come_back_equal(document: Cluster) -> None:
    assert_round_trip(document)


@settings(max_examples=50)
@given(profiles())
def test_profiles_come_back_equal(document: ModelProfile) -> None:
    assert_round_trip(document)


@settings(max_examples=50)
@given(plans())
def test_plans_come_back_equal(document: Plan) -> None:
    assert_round_trip(document)


@settings(max_examples=30)
@given(plans(), plans())
def test_fingerprints_differ_exactly_where_plans_differ(first: Plan, second: Plan) -> None:
    assert (first.fingerprint() == second.fingerprint()) == (first == second)


def test_files_come_back_equal_and_their_text_is_stable(tmp_path: Path) -> None:
    for kind, name in [("clusters", name) for name in library.shipped("clusters")]:
        document = library.load(kind, name)
        document.to_file(tmp_path / "file.yaml")
        back = type(document).from_file(tmp_path / "file.yaml")
        assert back == document
        assert back.to_yaml() == (tmp_path / "file.yaml").read_text()


class _Learning:
    """What another thread does while a document is pickled: it finds out more of it."""

    document: Document

    def __reduce__(self) -> tuple[type[str], tuple[str]]:
        self.document.__dict__["known"] = 1
        return str, ("sent",)


class _Learned(Document):
    first: int
    learning: Any


def test_a_document_is_pickled_while_another_thread_learns_of_it() -> None:
    learning = _Learning()
    learning.document = _Learned(first=1, learning=learning)
    assert pickle.loads(pickle.dumps(learning.document)) == _Learned(first=1, learning="sent")


def test_what_a_document_knows_of_itself_is_not_pickled() -> None:
    profile = library.load_profile("perceptron")
    assert profile.tied_layers is not None
    assert profile.__dict__.keys() > type(profile).model_fields.keys()
    read = pickle.loads(pickle.dumps(profile))
    assert read == profile
    assert read.__dict__.keys() == type(profile).model_fields.keys()

"""What AWS is asked for when Ray's autoscaler asks for machines, against moto's AWS.

moto fills every capacity at once and knows no minimum; where AWS does otherwise, `aws` says so.
"""

import contextlib
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import botocore.session
import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from moto import mock_aws
from moto.autoscaling.exceptions import AutoscalingClientError, ValidationError
from moto.autoscaling.models import AutoScalingBackend, FakeAutoScalingGroup, autoscaling_backends
from moto.core.models import DEFAULT_ACCOUNT_ID as ACCOUNT
from ray.autoscaler._private.providers import _get_node_provider
from ray.autoscaler._private.util import prepare_config, validate_config
from ray.autoscaler.tags import TAG_RAY_LAUNCH_REQUEST, TAG_RAY_USER_NODE_TYPE
from ray.autoscaler.v2.instance_manager.config import FileConfigReader
from ray.autoscaler.v2.instance_manager.node_provider import (
    LaunchNodeError,
    NodeProviderAdapter,
    TerminateNodeError,
)
from ray.core.generated.instance_manager_pb2 import NodeKind  # pyright: ignore[reportAttributeAccessIssue]

from rungwise.cluster.description import Machine, Scaling, WorkerGroup
from rungwise.core.errors import ConfigError
from rungwise_aws import autoscaling, autoscaling_groups
from rungwise_aws.autoscaling_groups import REQUEST_SECONDS, AutoScalingGroups

# moto: AccessDenied, which every service may answer, stands in no service's model.
pytestmark = pytest.mark.filterwarnings("ignore:.*with code AccessDenied:UserWarning")
REGION = "eu-west-1"
HEAD = "i-0123456789abcdef0"
MAXIMUM = {"cpu": 4, "gpu": 3}


class Aws:
    """moto's AWS with fresh groups `c-cpu` and `c-gpu`, and what was set on them."""

    def __init__(self, client: Any, patch: pytest.MonkeyPatch) -> None:
        self._patch = patch
        self.client = client
        for group in client.describe_auto_scaling_groups()["AutoScalingGroups"]:
            name = group["AutoScalingGroupName"]
            client.delete_auto_scaling_group(AutoScalingGroupName=name, ForceDelete=True)
        for name, maximum in MAXIMUM.items():
            self.client.create_auto_scaling_group(
                AutoScalingGroupName=f"c-{name}",
                MinSize=0,
                MaxSize=maximum,
                DesiredCapacity=0,
                LaunchTemplate={"LaunchTemplateName": "worker"},
                AvailabilityZones=[f"{REGION}a"],
            )
        self._fill = FakeAutoScalingGroup.replace_autoscaling_group_instances
        self.denied = False
        self.settings: list[tuple[str, int, int]] = []  # group, capacity, MaxSize at that time
        for name, wrap in (
            ("set_desired_capacity", self._recorded),
            ("terminate_instance", self._refusing),
        ):
            patch.setattr(AutoScalingBackend, name, wrap(getattr(AutoScalingBackend, name)))

    def _recorded(self, original: Any) -> Any:
        def set_desired(backend: Any, group_name: str, desired_capacity: int) -> None:
            if self.denied:
                raise AutoscalingClientError("AccessDenied", "not authorized")
            group = backend.autoscaling_groups[group_name]
            self.settings.append((group_name, desired_capacity, group.max_size))
            original(backend, group_name, desired_capacity)

        return set_desired

    def _refusing(self, original: Any) -> Any:
        def terminate(backend: Any, instance_id: str, should_decrement: bool) -> Any:
            for group in backend.autoscaling_groups.values():
                ids = [state.instance.id for state in group.instance_states]
                if instance_id in ids:
                    if should_decrement and group.desired_capacity <= group.min_size:
                        raise ValidationError("would violate group's min size constraint")
                    return original(backend, instance_id, should_decrement)
            raise ValidationError("Instance Id not found")

        return terminate

    def capacity(self, available: bool) -> None:
        """Whether AWS starts machines for what a group lacks; if so, it starts those lacking."""
        fill = self._fill if available else lambda group, count_needed, propagated_tags: None
        self._patch.setattr(FakeAutoScalingGroup, "replace_autoscaling_group_instances", fill)
        if available:
            for name in MAXIMUM:
                self.by_hand(name, DesiredCapacity=self.desired(name))

    def by_hand(self, name: str, **sizes: int) -> None:
        self.client.update_auto_scaling_group(AutoScalingGroupName=f"c-{name}", **sizes)

    def _group(self, name: str) -> dict[str, Any]:
        answer = self.client.describe_auto_scaling_groups(AutoScalingGroupNames=[f"c-{name}"])
        return answer["AutoScalingGroups"][0]

    def desired(self, name: str) -> int:
        return self._group(name)["DesiredCapacity"]

    def machines(self, name: str) -> list[str]:
        return sorted(machine["InstanceId"] for machine in self._group(name)["Instances"])


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(autoscaling_groups, "_now", clock)
    return clock


@pytest.fixture(scope="module")
def client() -> Iterator[Any]:
    """A client of moto's autoscaling; the session in it reads botocore's models once for all."""
    with pytest.MonkeyPatch.context() as patch, mock_aws():
        patch.setenv("AWS_ACCESS_KEY_ID", "testing")
        patch.setenv("AWS_SECRET_ACCESS_KEY", "testing")
        patch.delenv("AWS_ENDPOINT_URL", raising=False)
        session = botocore.session.get_session()
        patch.setattr(botocore.session, "get_session", lambda: session)
        session.create_client("ec2", region_name=REGION).create_launch_template(
            LaunchTemplateName="worker",
            LaunchTemplateData={"ImageId": "ami-12c6146b", "InstanceType": "t3.micro"},
        )
        yield session.create_client("autoscaling", region_name=REGION)


@pytest.fixture
def aws(client: Any, monkeypatch: pytest.MonkeyPatch, clock: Clock) -> Aws:
    return Aws(client, monkeypatch)


def machine(**scaling: Any) -> Machine:
    groups = {
        "cpu": WorkerGroup(
            autoscaling_group="c-cpu", maximum=MAXIMUM["cpu"], resources={"CPU": 8.0}
        ),
        "gpu": WorkerGroup(
            autoscaling_group="c-gpu",
            maximum=MAXIMUM["gpu"],
            resources={"CPU": 32, "GPU": 8, "efa": 1},
            labels={"zone": "a"},
        ),
    }
    return Machine(
        role="head",
        cluster="c",
        region=REGION,
        resources={"CPU": 0},
        token_secret="arn:token",
        scaling=Scaling(**{"groups": groups, **scaling}),
    )


def written(path: Path) -> dict[str, Any]:
    autoscaling.write_config(machine(), HEAD, path)
    return yaml.safe_load(path.read_text())


@pytest.fixture
def provider(aws: Aws, tmp_path: Path) -> AutoScalingGroups:
    return AutoScalingGroups(written(tmp_path / "autoscaling.yaml")["provider"], "c")


def launch(provider: AutoScalingGroups, name: str, count: int, request: str = "first") -> None:
    tags = {TAG_RAY_USER_NODE_TYPE: name, TAG_RAY_LAUNCH_REQUEST: request}
    provider.create_node_with_resources_and_labels({}, tags, count, {}, {})


def rounds(provider: AutoScalingGroups, clock: Clock, seconds: float) -> None:
    """As Ray lists the machines, but every twentieth of the timeout."""
    step = REQUEST_SECONDS / 20
    for _ in range(round(seconds / step)):
        clock.now += step
        provider.non_terminated_nodes({})


def workers(provider: AutoScalingGroups) -> list[str]:
    return [node for node in provider.non_terminated_nodes({}) if node != HEAD]


def test_rays_own_validation_takes_the_file_as_it_is_and_prepared(tmp_path: Path) -> None:
    config = written(tmp_path / "autoscaling.yaml")
    validate_config(config)
    validate_config(prepare_config(config))


def test_ray_reads_the_groups_as_node_types_with_their_bounds(tmp_path: Path) -> None:
    autoscaling.write_config(machine(idle_timeout_minutes=2.5), HEAD, tmp_path / "autoscaling.yaml")
    config = FileConfigReader(str(tmp_path / "autoscaling.yaml")).get_cached_autoscaling_config()
    types = config.get_node_type_configs()
    assert set(types) == {"head", "cpu", "gpu"}
    assert (types["gpu"].min_worker_nodes, types["gpu"].max_worker_nodes) == (0, 3)
    assert types["gpu"].resources == {"CPU": 32, "GPU": 8, "efa": 1}
    assert types["gpu"].labels == {"zone": "a"}
    assert types["head"].max_worker_nodes == 1  # itself
    assert config.get_head_node_type() == "head"
    assert config.get_idle_timeout_s() == 150
    assert config.get_max_num_worker_nodes() == 7
    assert config.disable_node_updaters()
    assert config.disable_launch_config_check()


def test_nothing_but_the_whole_file_is_ever_at_its_place(tmp_path: Path) -> None:
    path = tmp_path / "autoscaling.yaml"
    first = written(path)
    split = {"bad": WorkerGroup(autoscaling_group="x", maximum=1, resources={"GPU": 0.5})}
    with pytest.raises(ConfigError, match=r"groups\.bad\.resources\.GPU: .* whole numbers"):
        autoscaling.write_config(machine(groups=split), HEAD, path)
    assert yaml.safe_load(path.read_text()) == first
    assert [file.name for file in tmp_path.iterdir()] == ["autoscaling.yaml"]


def test_a_group_named_as_the_heads_is_refused(tmp_path: Path) -> None:
    groups = {"head": WorkerGroup(autoscaling_group="x", maximum=1, resources={"CPU": 1})}
    with pytest.raises(ConfigError, match="the head's own group"):
        autoscaling.write_config(machine(groups=groups), HEAD, tmp_path / "autoscaling.yaml")


def test_the_monitor_loads_nothing_heavy_with_the_provider() -> None:
    code = (
        "import sys, rungwise_aws.autoscaling_groups; "
        "bad = {'torch', 'mlflow', 'pandas', 'pyarrow', 'boto3'} & set(sys.modules); assert not bad"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_rays_adapter_lists_the_head_and_the_machines_with_their_groups(
    aws: Aws, tmp_path: Path
) -> None:
    aws.by_hand("gpu", DesiredCapacity=2)
    config = written(tmp_path / "autoscaling.yaml")
    reader = FileConfigReader(str(tmp_path / "autoscaling.yaml"))
    provider = _get_node_provider(config["provider"], "c", use_cache=False)
    listed = NodeProviderAdapter(provider, reader).get_non_terminated()
    (first, second) = aws.machines("gpu")
    assert {(i.node_type, i.node_kind, i.is_running) for i in listed.values()} == {
        ("head", NodeKind.HEAD, True),
        ("gpu", NodeKind.WORKER, True),
    }
    assert set(listed) == {HEAD, first, second}


def test_a_launch_raises_its_group_alone(provider: AutoScalingGroups, aws: Aws) -> None:
    launch(provider, "gpu", 2)
    assert (aws.desired("gpu"), aws.desired("cpu")) == (2, 0)
    assert sorted(workers(provider)) == aws.machines("gpu")


def test_launches_at_the_same_time_add_up(provider: AutoScalingGroups, aws: Aws) -> None:
    # Without a lock the first capacity, which is the lowest, would be set last.
    delays = iter([0.2, 0.1, 0.05, 0.0])
    provider._client.meta.events.register(
        "before-call.autoscaling.SetDesiredCapacity", lambda **_: time.sleep(next(delays))
    )
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda _: launch(provider, "cpu", 1), range(4)))
    assert aws.desired("cpu") == 4


def test_what_does_not_fit_waits_and_goes_when_the_maximum_allows_it(
    provider: AutoScalingGroups, aws: Aws
) -> None:
    aws.by_hand("gpu", MaxSize=0)  # off hours
    launch(provider, "gpu", 2)
    assert aws.desired("gpu") == 0
    aws.by_hand("gpu", MaxSize=1)
    assert len(workers(provider)) == 0
    assert len(workers(provider)) == 1
    aws.by_hand("gpu", MaxSize=3)
    workers(provider)
    assert len(workers(provider)) == 2
    assert aws.desired("gpu") == 2


def test_what_still_does_not_fit_when_ray_asks_again_is_refused(
    provider: AutoScalingGroups, aws: Aws, clock: Clock
) -> None:
    aws.by_hand("gpu", MaxSize=0)
    launch(provider, "gpu", 2)
    rounds(provider, clock, REQUEST_SECONDS * 1.05)
    for _ in range(2):  # as two batches of one request
        with pytest.raises(RuntimeError, match="2 of 2 machines do not fit: group gpu"):
            launch(provider, "gpu", 2)
    aws.by_hand("gpu", MaxSize=3)
    rounds(provider, clock, REQUEST_SECONDS)
    assert aws.desired("gpu") == 0  # refused is not wanted


def test_our_maximum_holds_where_the_groups_own_is_higher(
    provider: AutoScalingGroups, aws: Aws
) -> None:
    aws.by_hand("gpu", MaxSize=100)
    launch(provider, "gpu", 50)
    assert aws.desired("gpu") == 3


def test_a_request_that_is_not_filled_does_not_grow_when_ray_repeats_it(
    provider: AutoScalingGroups, aws: Aws, clock: Clock
) -> None:
    aws.capacity(available=False)
    for _ in range(4):
        launch(provider, "cpu", 1)
        launch(provider, "cpu", 1)  # another batch of the same request
        assert aws.desired("cpu") == 2
        rounds(provider, clock, REQUEST_SECONDS * 1.05)
        assert aws.desired("cpu") == 2


def test_a_request_given_up_and_put_under_a_new_id_does_not_grow(
    provider: AutoScalingGroups, aws: Aws, clock: Clock
) -> None:
    aws.capacity(available=False)
    for request in range(5):
        launch(provider, "cpu", 1, str(request))
        assert aws.desired("cpu") == 1
        rounds(provider, clock, REQUEST_SECONDS)  # Ray's round may be a moment before our time
        assert aws.desired("cpu") == 1


def test_another_demand_adds_to_a_request_that_is_not_filled(
    provider: AutoScalingGroups, aws: Aws, clock: Clock
) -> None:
    aws.capacity(available=False)
    launch(provider, "cpu", 1, "first")
    rounds(provider, clock, REQUEST_SECONDS / 2)
    launch(provider, "cpu", 2, "second")
    assert aws.desired("cpu") == 3


def test_a_request_that_ray_gave_up_is_withdrawn_and_brings_no_machine(
    provider: AutoScalingGroups, aws: Aws, clock: Clock
) -> None:
    launch(provider, "cpu", 1, "filled")
    aws.capacity(available=False)
    launch(provider, "cpu", 2, "not filled")
    assert aws.desired("cpu") == 3
    rounds(provider, clock, REQUEST_SECONDS * 1.3)
    assert aws.desired("cpu") == 1
    aws.capacity(available=True)
    rounds(provider, clock, REQUEST_SECONDS)
    assert len(aws.machines("cpu")) == 1


def test_a_request_filled_in_part_waits_for_the_rest_alone(
    provider: AutoScalingGroups, aws: Aws, clock: Clock
) -> None:
    launch(provider, "cpu", 1, "all")
    assert len(workers(provider)) == 1
    aws.capacity(available=False)
    launch(provider, "cpu", 1, "none")
    rounds(provider, clock, REQUEST_SECONDS * 1.05)
    launch(provider, "cpu", 1, "none")
    assert aws.desired("cpu") == 2
    aws.capacity(available=True)
    assert len(workers(provider)) == 2
    rounds(provider, clock, REQUEST_SECONDS * 1.3)
    assert aws.desired("cpu") == 2  # filled is not given up


def test_a_machine_that_went_and_is_not_replaced_is_not_asked_for_by_the_group(
    provider: AutoScalingGroups, aws: Aws, clock: Clock
) -> None:
    launch(provider, "gpu", 2)
    lost = workers(provider)[0]
    aws.capacity(available=False)  # a spot machine, taken by AWS
    aws.client.terminate_instance_in_auto_scaling_group(
        InstanceId=lost, ShouldDecrementDesiredCapacity=False
    )
    assert aws.desired("gpu") == 2
    launch(provider, "gpu", 1, "instead of it")
    assert aws.desired("gpu") == 2  # Ray's request is the one that AWS has
    rounds(provider, clock, REQUEST_SECONDS * 1.3)
    assert aws.desired("gpu") == 1


def test_a_restarted_head_withdraws_what_no_one_wants_any_more(
    aws: Aws, clock: Clock, tmp_path: Path
) -> None:
    aws.capacity(available=False)
    config = written(tmp_path / "autoscaling.yaml")["provider"]
    launch(AutoScalingGroups(config, "c"), "gpu", 3)
    assert aws.desired("gpu") == 3
    rounds(AutoScalingGroups(config, "c"), clock, REQUEST_SECONDS * 0.2)
    assert aws.desired("gpu") == 0


def test_the_groups_minimum_is_left_alone(
    provider: AutoScalingGroups, aws: Aws, clock: Clock
) -> None:
    aws.capacity(available=False)
    aws.by_hand("cpu", MinSize=2, DesiredCapacity=2)
    launch(provider, "cpu", 2)  # Ray asks for its own minimum too
    rounds(provider, clock, REQUEST_SECONDS * 1.5)
    assert aws.settings == []
    assert aws.desired("cpu") == 2


def test_an_ended_machine_is_taken_off_its_group(provider: AutoScalingGroups, aws: Aws) -> None:
    launch(provider, "cpu", 3)
    first, second, third = workers(provider)
    provider.terminate_nodes([first, third])
    assert aws.desired("cpu") == 1
    assert workers(provider) == [second]


def test_a_machine_that_aws_still_shows_after_its_end_is_not_counted(
    provider: AutoScalingGroups, aws: Aws, monkeypatch: pytest.MonkeyPatch
) -> None:
    launch(provider, "cpu", 2)
    ended, kept = workers(provider)

    def lower(backend: Any, instance_id: str, should_decrement: bool) -> Any:
        activity = terminate(backend, instance_id, should_decrement)
        backend.autoscaling_groups["c-cpu"].instance_states.append(shown)
        return activity

    (shown,) = (
        state
        for state in autoscaling_backends[ACCOUNT][REGION]
        .autoscaling_groups["c-cpu"]
        .instance_states
        if state.instance.id == ended
    )
    terminate = AutoScalingBackend.terminate_instance
    monkeypatch.setattr(AutoScalingBackend, "terminate_instance", lower)
    provider.terminate_nodes([ended])
    assert ended in aws.machines("cpu")
    assert workers(provider) == [kept]
    launch(provider, "cpu", 1, "another")
    assert aws.settings[-1][1] == 2


def test_a_capacity_lowered_by_hand_is_not_raised_again(
    provider: AutoScalingGroups, aws: Aws
) -> None:
    launch(provider, "cpu", 3)
    workers(provider)
    before = len(aws.settings)
    # As AWS shows it before the machine has begun to end.
    autoscaling_backends[ACCOUNT][REGION].autoscaling_groups["c-cpu"].desired_capacity = 2
    workers(provider)
    assert len(aws.settings) == before


def test_a_machine_that_is_gone_or_ended_twice_is_no_error(
    provider: AutoScalingGroups, aws: Aws
) -> None:
    launch(provider, "cpu", 2)
    first, second = workers(provider)
    provider.terminate_nodes([first, first, "i-0ffffffffffffffff"])
    provider.terminate_nodes([first])
    assert aws.machines("cpu") == [second]


def test_a_machine_ended_at_the_minimum_is_replaced(provider: AutoScalingGroups, aws: Aws) -> None:
    aws.by_hand("cpu", MinSize=1, DesiredCapacity=1)
    (broken,) = workers(provider)
    provider.terminate_nodes([broken])
    assert aws.desired("cpu") == 1
    (fresh,) = workers(provider)
    assert fresh != broken


def test_the_head_is_never_ended_and_the_others_still_are(
    provider: AutoScalingGroups, aws: Aws
) -> None:
    launch(provider, "cpu", 1)
    (worker,) = workers(provider)
    with pytest.raises(RuntimeError, match=f"{HEAD}: the head is in no autoscaling group"):
        provider.terminate_nodes([HEAD, worker])
    assert aws.machines("cpu") == []


def test_an_error_of_aws_reaches_ray_as_a_failed_launch_and_leaves_nothing_wanted(
    aws: Aws, clock: Clock, tmp_path: Path
) -> None:
    provider = AutoScalingGroups(written(tmp_path / "autoscaling.yaml")["provider"], "c")
    reader = FileConfigReader(str(tmp_path / "autoscaling.yaml"))
    adapter = NodeProviderAdapter(provider, reader)
    aws.denied = True
    adapter.launch({"gpu": 2}, "request")
    adapter.terminate([HEAD], "another")
    adapter._main_executor.shutdown()
    adapter._node_launcher_executors.shutdown()
    failures = {type(error): error for error in adapter.poll_errors()}
    assert set(failures) == {LaunchNodeError, TerminateNodeError}
    assert "AccessDenied" in str(failures[LaunchNodeError].__cause__)
    aws.denied = False
    rounds(provider, clock, REQUEST_SECONDS)
    assert aws.desired("gpu") == 0


def test_a_listing_survives_that_a_capacity_cannot_be_set(
    provider: AutoScalingGroups, aws: Aws, clock: Clock
) -> None:
    launch(provider, "gpu", 1)
    aws.capacity(available=False)
    aws.by_hand("gpu", DesiredCapacity=3)
    aws.denied = True
    rounds(provider, clock, REQUEST_SECONDS * 0.3)
    assert len(workers(provider)) == 1
    aws.denied = False
    workers(provider)
    assert aws.desired("gpu") == 1


def test_a_group_that_is_gone_makes_a_listing_fail_and_not_empty(
    provider: AutoScalingGroups, aws: Aws
) -> None:
    launch(provider, "cpu", 1)
    aws.client.delete_auto_scaling_group(AutoScalingGroupName="c-gpu", ForceDelete=True)
    with pytest.raises(RuntimeError, match="AWS knows no autoscaling group c-gpu"):
        provider.non_terminated_nodes({})


def test_a_machine_that_aws_is_ending_is_not_listed(
    provider: AutoScalingGroups, aws: Aws, monkeypatch: pytest.MonkeyPatch
) -> None:
    aws.by_hand("cpu", DesiredCapacity=4)
    states = dict(
        zip(
            aws.machines("cpu"),
            ("Pending", "InService", "Terminating:Wait", "Standby"),
            strict=True,
        )
    )
    original = provider._parse_group

    def group(answer: dict[str, Any], maximum: int) -> Any:
        for entry in answer["Instances"]:
            entry["LifecycleState"] = states[entry["InstanceId"]]
        return original(answer, maximum)

    monkeypatch.setattr(provider, "_parse_group", group)
    listed = {node: provider.is_running(node) for node in workers(provider)}
    starting, running, *_ = states
    assert listed == {starting: False, running: True}


STEPS = st.one_of(
    st.tuples(
        st.just("launch"), st.sampled_from(sorted(MAXIMUM)), st.integers(1, 6), st.integers(0, 3)
    ),
    st.tuples(st.just("end"), st.integers(0, 9)),
    st.tuples(st.just("list")),
    st.tuples(st.just("capacity"), st.booleans()),
    st.tuples(st.just("wait"), st.floats(0, 2)),
    st.tuples(st.just("MaxSize"), st.sampled_from(sorted(MAXIMUM)), st.integers(0, 6)),
)


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(steps=st.lists(STEPS, max_size=20))
def test_whatever_happens_no_maximum_is_passed_and_only_live_machines_stay(
    steps: list[tuple[Any, ...]], client: Any, tmp_path: Path
) -> None:
    clock = Clock()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(autoscaling_groups, "_now", clock)
        aws = Aws(client, patch)
        provider = AutoScalingGroups(written(tmp_path / "autoscaling.yaml")["provider"], "c")
        for step in steps:
            match step:
                case "launch", name, count, request:
                    with contextlib.suppress(RuntimeError):  # it does not fit
                        launch(provider, name, count, str(request))
                case "end", number:
                    alive = workers(provider)
                    if alive:
                        provider.terminate_nodes([alive[number % len(alive)]])
                case ("list",):
                    provider.non_terminated_nodes({})
                case "capacity", available:
                    aws.capacity(available)
                case "wait", timeouts:
                    clock.now += timeouts * REQUEST_SECONDS
                case "MaxSize", name, size:
                    aws.by_hand(name, MaxSize=size, DesiredCapacity=min(size, aws.desired(name)))
            for group, capacity, max_size in aws.settings:
                assert 0 <= capacity <= min(MAXIMUM[group.removeprefix("c-")], max_size)
        aws.capacity(available=False)
        for _ in range(3):
            clock.now += REQUEST_SECONDS
            provider.non_terminated_nodes({})
        for name in MAXIMUM:
            assert aws.desired(name) == len(aws.machines(name))

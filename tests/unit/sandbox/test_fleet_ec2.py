"""Hosts from EC2, against an imitation of it."""

import base64
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from journeyman.sandbox.fleet.bootstrap import Bootstrap
from journeyman.sandbox.fleet.ec2 import TAG, Ec2Hosts, Ec2Settings
from journeyman.sandbox.fleet.provider import HostShortage
from journeyman.types.failure import SandboxError, UserError


@pytest.fixture
def cloud(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    import boto3
    from moto import mock_aws

    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "testing")
    with mock_aws():
        yield boto3.client("ec2", region_name="eu-central-1")


def settings(cloud: Any, fleet: str = "lab", **more: Any) -> Ec2Settings:
    subnet = cloud.describe_subnets()["Subnets"][0]
    groups = cloud.describe_security_groups(
        Filters=[{"Name": "vpc-id", "Values": [subnet["VpcId"]]}]
    )["SecurityGroups"]
    fields: dict[str, Any] = {
        "fleet": fleet,
        "region": "eu-central-1",
        "image_id": cloud.describe_images()["Images"][0]["ImageId"],
        "instance_type": "c7i.metal-24xl",
        "subnet_id": subnet["SubnetId"],
        "security_group_ids": (groups[0]["GroupId"],),
    }
    return Ec2Settings(**{**fields, **more})


def hosts(cloud: Any, **more: Any) -> Ec2Hosts:
    return Ec2Hosts(settings(cloud, **more), lambda: "#!/bin/bash\necho hello")


def described(cloud: Any, host_id: str) -> Any:
    return cloud.describe_instances(InstanceIds=[host_id])["Reservations"][0]["Instances"][0]


def test_hosts_are_started_as_asked(cloud: Any) -> None:
    made = hosts(cloud)
    started = [*made.start(1), *made.start(1)]
    assert {host.id for host in made.hosts()} == {host.id for host in started}
    instance = described(cloud, started[0].id)
    assert instance["InstanceType"] == "c7i.metal-24xl"
    assert {tag["Key"]: tag["Value"] for tag in instance["Tags"]}[TAG] == "lab"
    metadata = instance["MetadataOptions"]
    assert (metadata["HttpTokens"], metadata["HttpPutResponseHopLimit"]) == ("required", 1)
    data = cloud.describe_instance_attribute(InstanceId=started[0].id, Attribute="userData")
    assert base64.b64decode(data["UserData"]["Value"]) == b"#!/bin/bash\necho hello"
    volume = instance["BlockDeviceMappings"][0]["Ebs"]["VolumeId"]
    [disk] = cloud.describe_volumes(VolumeIds=[volume])["Volumes"]
    assert (disk["Size"], disk["Encrypted"]) == (500, True)
    assert {tag["Key"]: tag["Value"] for tag in disk["Tags"]}[TAG] == "lab"


def test_each_start_gets_a_script_of_its_own(cloud: Any) -> None:
    tickets = iter("ab")
    made = Ec2Hosts(settings(cloud), lambda: f"ticket {next(tickets)}")
    texts = []
    for _ in range(2):
        [host] = made.start(1)
        data = cloud.describe_instance_attribute(InstanceId=host.id, Attribute="userData")
        texts.append(base64.b64decode(data["UserData"]["Value"]).decode())
    assert texts == ["ticket a", "ticket b"]


def test_a_terminated_host_is_no_longer_listed_and_may_be_terminated_again(cloud: Any) -> None:
    made = hosts(cloud)
    [first], [second] = made.start(1), made.start(1)
    made.terminate(first.id)
    assert described(cloud, first.id)["State"]["Name"] == "terminated"
    assert [host.id for host in made.hosts()] == [second.id]
    made.terminate(first.id)


def test_what_is_not_of_this_fleet_is_never_ended(cloud: Any) -> None:
    """Neither an untagged machine of the same account nor one of another fleet."""
    made, others = hosts(cloud), hosts(cloud, fleet="another")
    [foreign] = others.start(1)
    image = settings(cloud).image_id
    plain = cloud.run_instances(ImageId=image, MinCount=1, MaxCount=1)["Instances"][0]
    assert made.hosts() == []
    for instance in (foreign.id, plain["InstanceId"]):
        with pytest.raises(UserError, match="not this fleet's to end"):
            made.terminate(instance)
        assert described(cloud, instance)["State"]["Name"] == "running"
    for nonsense in ("i-0123456789abcdef0", "*", ""):
        with pytest.raises(UserError):
            made.terminate(nonsense)


class Refusing:
    """EC2 as it answers when it does not give anything: the imitation never runs out."""

    def __init__(self, code: str) -> None:
        self._code = code
        self.asked: dict[str, Any] = {}

    def run_instances(self, **asked: Any) -> Any:
        from botocore.exceptions import ClientError

        self.asked = asked
        raise ClientError({"Error": {"Code": self._code, "Message": "no"}}, "RunInstances")


PLAIN = Ec2Settings(
    fleet="f", region="eu-central-1", image_id="i", subnet_id="s", security_group_ids=("g",)
)


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        ("InsufficientInstanceCapacity", HostShortage),
        ("InsufficientHostCapacity", HostShortage),
        ("InstanceLimitExceeded", HostShortage),
        ("VcpuLimitExceeded", HostShortage),
        ("UnauthorizedOperation", UserError),
        ("AuthFailure", UserError),
        ("InvalidAMIID.NotFound", UserError),
        ("InternalError", SandboxError),
    ],
)
def test_refusals_say_whether_waiting_or_mending_helps(
    monkeypatch: pytest.MonkeyPatch, code: str, kind: type[Exception]
) -> None:
    made, refusing = Ec2Hosts(PLAIN, lambda: ""), Refusing(code)
    monkeypatch.setattr(made, "_ec2", refusing)
    with pytest.raises(kind, match=code) as caught:
        made.start(5)
    assert type(caught.value) is kind
    # Fewer than asked for are better than none.
    assert (refusing.asked["MinCount"], refusing.asked["MaxCount"]) == (1, 5)


def test_missing_credentials_are_a_persons_business(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", "/nonexistent")
    monkeypatch.setenv("AWS_CONFIG_FILE", "/nonexistent")
    with pytest.raises(UserError, match="credentials"):
        Ec2Hosts(PLAIN, lambda: "").hosts()


def test_without_boto3_the_cure_is_named() -> None:
    code = (
        "import sys; sys.modules['boto3'] = None\n"
        "from journeyman.sandbox.fleet.ec2 import Ec2Hosts, Ec2Settings\n"
        "Ec2Hosts(Ec2Settings(fleet='f', region='r', image_id='i', subnet_id='s',"
        " security_group_ids=('g',)), lambda: '')\n"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert "pip install 'journeyman[ec2]'" in result.stderr


# ---- the script


def bootstrap(**more: Any) -> Bootstrap:
    fields: dict[str, Any] = {
        "control_url": "http://10.0.0.1:8090",
        "ticket": "t" * 40,
        "package": "journeyman==1.2.3",
    }
    return Bootstrap(**{**fields, **more})


def test_the_script_is_one_that_bash_understands() -> None:
    script = bootstrap(driver="qemu").script()
    checked = subprocess.run(["bash", "-n"], input=script, capture_output=True, text=True)
    assert (checked.returncode, checked.stderr) == (0, "")
    assert "JOURNEYMAN_DRIVER=qemu\n" in script
    assert script.startswith("#!/bin/bash\n")


def test_no_value_becomes_code() -> None:
    """Only the settings are run, as bash runs them, and the value must come out as it went in."""
    evil = "x'; touch /tmp/evil; echo '$(id) `id`"
    script = bootstrap(package=evil).script()
    settings_only = script.partition("umask 077\n")[2].partition("home=/")[0]
    shown = subprocess.run(
        ["bash", "-c", settings_only + 'printf %s "$JOURNEYMAN_PACKAGE"'],
        capture_output=True,
        text=True,
    )
    assert (shown.stdout, shown.stderr) == (evil, "")


@pytest.mark.parametrize(
    "wrong",
    [
        {"control_url": "ftp://x"},
        {"control_url": "http://x/%i"},  # would mean something to systemd
        {"control_url": "http://x --node y"},
        {"driver": "gvisor --ticket"},
        {"driver": ""},
        {"ticket": "short"},
        {"port": 0},
    ],
)
def test_settings_that_would_break_the_unit_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError):
        bootstrap(**wrong)


def test_a_script_that_ec2_would_not_take_is_refused() -> None:
    with pytest.raises(UserError, match="bytes, over 16384"):
        bootstrap(package="x" * 20_000).script()

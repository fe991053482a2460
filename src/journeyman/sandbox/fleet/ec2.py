"""Hosts from Amazon EC2: metal instances, on which virtual machines run at full speed."""

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any

from pydantic import Field

from journeyman.sandbox.fleet.provider import Host, HostShortage, HostState
from journeyman.types.failure import SandboxError, UserError
from journeyman.types.value import Value

TAG = "journeyman:fleet"
_STATES: dict[str, HostState] = {
    "pending": "starting",
    "running": "running",
    "stopping": "stopping",
    "stopped": "stopping",
    "shutting-down": "stopping",
}
_SHORT = re.compile(r"Insufficient.*Capacity|.*LimitExceeded|MaxSpotInstanceCount.*|Throttl.*")
_PERSON = re.compile(r"Auth.*|Unauthorized.*|.*Credential.*|Invalid.*|.*NotFound|OptIn.*|Pending.*")


class Ec2Settings(Value):
    """One kind of host. `fleet` is the tag by which this fleet knows its own."""

    fleet: str = Field(pattern=r"^[\w.-]{1,64}$")
    region: str
    image_id: str
    """A Debian 12 image for the instance's architecture."""
    instance_type: str = "c7i.metal-24xl"
    subnet_id: str
    security_group_ids: tuple[str, ...] = Field(min_length=1)
    """Let them admit the manager only, and nothing from sandboxes."""
    disk_gib: int = Field(default=500, ge=20)
    instance_profile: str = ""
    """None is needed: a node calls nothing of Amazon's."""


class Ec2Hosts:
    """Implements `HostProvider`. Needs the extra `ec2`.

    Every call names the fleet's tag. An instance without it is never listed and never ended, even
    when its id is given; an IAM policy with the same condition is the second lock (docs/fleet.md).
    """

    def __init__(self, settings: Ec2Settings, user_data: Callable[[], str]) -> None:
        """`user_data` makes the script for one call of `start`, with a ticket of its own.

        Raises UserError when boto3 is not installed.
        """
        self._settings = settings
        self._user_data = user_data
        self._ec2 = _client(settings.region)

    def hosts(self) -> list[Host]:
        now = datetime.now(UTC)
        filters = [{"Name": "instance-state-name", "Values": list(_STATES)}]
        return [_host(instance, now) for instance in self._ours(filters)]

    def start(self, count: int) -> list[Host]:
        if count < 1:
            raise ValueError(f"count must be at least 1, not {count}")
        with _translated(f"start {count} instances of {self._settings.instance_type}"):
            answer = self._ec2.run_instances(
                MinCount=1, MaxCount=count, UserData=self._user_data(), **self._description()
            )
        now = datetime.now(UTC)
        return [_host(instance, now) for instance in answer["Instances"]]

    def terminate(self, host_id: str) -> None:
        if not host_id.startswith("i-"):
            raise UserError(f"{host_id!r} is not an EC2 instance", "Give an instance id, i-….")
        ours = list(self._ours([{"Name": "instance-id", "Values": [host_id]}]))
        if not ours:
            raise UserError(
                f"instance {host_id} does not carry the tag {TAG}={self._settings.fleet}; it is "
                "not this fleet's to end",
                "End it yourself if it should go.",
            )
        if ours[0]["State"]["Name"] == "terminated":
            return
        with _translated(f"terminate instance {host_id}"):
            self._ec2.terminate_instances(InstanceIds=[host_id])

    def _ours(self, filters: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
        mine = {"Name": f"tag:{TAG}", "Values": [self._settings.fleet]}
        with _translated("list the fleet's instances"):
            pages = self._ec2.get_paginator("describe_instances").paginate(Filters=[mine, *filters])
            found = [
                instance
                for page in pages
                for reservation in page["Reservations"]
                for instance in reservation["Instances"]
            ]
        # The filter was Amazon's to apply; what may be ended is checked here.
        return (instance for instance in found if _tags(instance).get(TAG) == mine["Values"][0])

    def _description(self) -> dict[str, Any]:
        settings = self._settings
        tags = [
            {"Key": TAG, "Value": settings.fleet},
            {"Key": "Name", "Value": f"{settings.fleet}-sandboxes"},
        ]
        described: dict[str, Any] = {
            "ImageId": settings.image_id,
            "InstanceType": settings.instance_type,
            "SubnetId": settings.subnet_id,
            "SecurityGroupIds": list(settings.security_group_ids),
            "TagSpecifications": [
                {"ResourceType": kind, "Tags": tags} for kind in ("instance", "volume")
            ],
            # Credentials and user data are out of reach for whatever is more than one hop away.
            "MetadataOptions": {
                "HttpTokens": "required",
                "HttpPutResponseHopLimit": 1,
                "HttpEndpoint": "enabled",
            },
            "BlockDeviceMappings": [
                {
                    "DeviceName": "/dev/xvda",
                    "Ebs": {
                        "VolumeSize": settings.disk_gib,
                        "VolumeType": "gp3",
                        "Encrypted": True,
                        "DeleteOnTermination": True,
                    },
                }
            ],
            # One that halts is gone, and with it what lay on its disk.
            "InstanceInitiatedShutdownBehavior": "terminate",
        }
        if settings.instance_profile:
            described["IamInstanceProfile"] = {"Name": settings.instance_profile}
        return described


def _client(region: str) -> Any:
    try:
        import boto3  # noqa: PLC0415, an optional extra
        from botocore.config import Config  # noqa: PLC0415
    except ModuleNotFoundError as error:
        raise UserError("boto3 is not installed", "run: pip install 'journeyman[ec2]'") from error
    retries = Config(retries={"mode": "standard", "max_attempts": 5}, connect_timeout=10)
    return boto3.client("ec2", region_name=region, config=retries)


@contextmanager
def _translated(what: str) -> Iterator[None]:
    """Amazon's errors, as the protocol of providers has them."""
    from botocore.exceptions import (  # noqa: PLC0415, an optional extra
        BotoCoreError,
        ClientError,
        NoCredentialsError,
        PartialCredentialsError,
    )

    try:
        yield
    except ClientError as error:
        code, message = error.response["Error"]["Code"], error.response["Error"]["Message"]
        cause = f"EC2 does not {what}: {code}: {message}"
        if _SHORT.fullmatch(code):
            raise HostShortage(cause, "Wait, or allow another kind of instance.") from error
        if _PERSON.fullmatch(code):
            raise UserError(cause, "Mend the fleet's EC2 settings or its permissions.") from error
        raise SandboxError(cause) from error
    except (NoCredentialsError, PartialCredentialsError) as error:
        raise UserError(
            f"EC2 cannot be asked to {what}: {error}",
            "Give credentials as for any program that uses boto3.",
        ) from error
    except BotoCoreError as error:
        raise SandboxError(f"EC2 cannot be asked to {what}: {error}") from error


def _host(instance: dict[str, Any], now: datetime) -> Host:
    return Host(
        id=instance["InstanceId"],
        state=_STATES.get(instance["State"]["Name"], "stopping"),
        age_s=max(0.0, (now - instance["LaunchTime"]).total_seconds()),
    )


def _tags(instance: dict[str, Any]) -> dict[str, str]:
    return {tag["Key"]: tag["Value"] for tag in instance.get("Tags", ())}

"""The instances stages, for planning; building.py builds the shards."""

import dataclasses

from rungwise.core.stages.later import Later
from rungwise.core.stages.stage import StageType
from rungwise.instances.summary import InstancesSummary

INSTANCES = StageType(
    "instances",
    5,
    Later("rungwise.instances.building:build_instances"),
    InstancesSummary,
    identity=lambda config: config.identity,
    resumes=True,
)
LONGER_INSTANCES = dataclasses.replace(INSTANCES, name="longer_instances")

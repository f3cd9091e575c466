"""Descriptions of the machines mugraph schedules for: limits that schedules must keep and rates the cost model uses."""

from mugraph.devices.device import Device
from mugraph.devices.registry import device_for, known_targets
from mugraph.devices.roofline import roofline_seconds

__all__ = ["Device", "device_for", "known_targets", "roofline_seconds"]

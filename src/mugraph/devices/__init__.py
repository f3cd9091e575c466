"""Descriptions of the machines mugraph schedules for: limits that schedules must keep and rates the cost model uses."""

from mugraph.devices.device import NO_ENGINES, Device, Engines
from mugraph.devices.roofline import roofline_seconds
from mugraph.devices.targets import device_for, known_targets, resolved

__all__ = ["NO_ENGINES", "Device", "Engines", "device_for", "known_targets", "resolved", "roofline_seconds"]

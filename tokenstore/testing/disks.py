"""The fault seams: a disk whose power can be cut at any step, and one whose calls fail as told."""

from __future__ import annotations

from tokenstore.testing.failing_disk import FailingDisk, Fault
from tokenstore.testing.persistence import PersistencePolicy
from tokenstore.testing.simulated_disk import SimulatedDisk
from tokenstore.testing.simulated_files import PowerCut

__all__ = ["FailingDisk", "Fault", "PersistencePolicy", "PowerCut", "SimulatedDisk"]

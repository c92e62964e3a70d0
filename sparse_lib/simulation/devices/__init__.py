"""Devices by name: each file of this folder declares one as ``SPEC``, and nothing else names it."""

from __future__ import annotations

import importlib
import pkgutil

from sparse_lib.simulation.host import probe_host
from sparse_lib.simulation.spec import DeviceSpec


def discover() -> dict[str, DeviceSpec]:
    """Every device of this folder by name, in order of title, which begins with the vendor.

    Raises:
        ValueError: If a file declares no ``SPEC`` of its own name.
    """
    found: dict[str, DeviceSpec] = {}
    for module in pkgutil.iter_modules(__path__):
        spec = getattr(importlib.import_module(f"{__name__}.{module.name}"), "SPEC", None)
        if not isinstance(spec, DeviceSpec) or spec.name != module.name:
            raise ValueError(f"device {module.name}: the file must declare SPEC with this name")
        found[spec.name] = spec
    return dict(sorted(found.items(), key=lambda item: item[1].title))


SPECS = discover()
"""All devices but ``"host"``, which :func:`device_spec` measures."""


def device_spec(name: str | DeviceSpec) -> DeviceSpec:
    """A device by name; ``"host"`` is the machine at hand and takes some seconds to probe.

    Raises:
        ValueError: If there is no such device.
    """
    if isinstance(name, DeviceSpec):
        return name
    if name == "host":
        return probe_host()
    if name not in SPECS:
        raise ValueError(f"device is {name!r}; it must be one of {', '.join(SPECS)}, host.")
    return SPECS[name]

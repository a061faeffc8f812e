"""What annotations say in themselves: configurations, which tensors, which devices, which axes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from onnx import DeviceConfigurationProto, ModelProto, NodeDeviceConfigurationProto, NodeProto, ShardingSpecProto

from tpcompile.annotations.layout import Layout
from tpcompile.annotations.spec import Wrong, read_spec
from tpcompile.annotations.write import IR_VERSION
from tpcompile.errors import Fault

MOST_DEVICES = 65536
"""Of more devices nothing is checked: lists of all of them would take all memory there is."""


@dataclass(frozen=True)
class Entry:
    """What a node says for one configuration: the layouts of its tensors, None where what is said is wrong."""

    layouts: dict[str, Layout | None]
    stage: int | None


@dataclass
class Specs:
    """Reads the annotations of one configuration; equal ones are read once."""

    name: str
    devices: int
    _read: dict[tuple[bytes, tuple[int | None, ...] | None], tuple[Layout | None, list[Wrong]]] = field(
        default_factory=dict
    )

    def entry(
        self, proto: NodeProto, where: str, sizes: dict[str, tuple[int | None, ...]]
    ) -> tuple[Entry | None, list[Fault]]:
        """What a node says for this configuration, None where that is nothing, and what is wrong with it.

        `sizes` are those of the node's tensors, as far as their rank is known.
        """
        found = [entry for entry in proto.device_configurations if entry.configuration_id == self.name]
        if not found:
            return None, []
        faults = list(_entry_faults(found, where, self.name))
        stage = found[0].pipeline_stage if found[0].HasField("pipeline_stage") else None
        layouts: dict[str, Layout | None] = {}
        own = {name for name in (*proto.input, *proto.output) if name}
        for spec in found[0].sharding_spec:
            fault = _tensor_fault(spec, own, layouts, where)
            if fault is not None:
                faults.append(fault)
                continue
            layout, wrong = self._layout(spec, sizes.get(spec.tensor_name))
            layouts[spec.tensor_name] = layout
            faults += [Fault(w.code, f"{where}: {spec.tensor_name}", w.fact, w.remedy) for w in wrong]
        return Entry(layouts, stage), faults

    def _layout(
        self, spec: ShardingSpecProto, sizes: tuple[int | None, ...] | None
    ) -> tuple[Layout | None, list[Wrong]]:
        bare = ShardingSpecProto()
        bare.CopyFrom(spec)
        bare.ClearField("tensor_name")
        key = (bare.SerializeToString(deterministic=True), sizes)
        if key not in self._read:
            self._read[key] = read_spec(spec, sizes, self.devices)
        return self._read[key]


def configuration_faults(model: ModelProto) -> Iterator[Fault]:
    """What is wrong with a model's configurations of devices."""
    if model.ir_version < IR_VERSION:
        fact = f"it is of IR version {model.ir_version}, which has no annotations"
        yield Fault("TP165", "", fact, f"Set ir_version to {IR_VERSION}")
    named = Counter(found.name for found in model.configuration)
    for place, found in enumerate(model.configuration):
        where = f"configuration '{found.name}'" if found.name else f"configuration {place}"
        if not found.name:
            yield Fault("TP165", where, "it has no name", "Give it one: nodes speak of it by name")
        yield from _devices_faults(found, where)
    for name, count in named.items():
        if count > 1 and name:
            fact = f"there are {count} of that name"
            yield Fault("TP165", f"configuration '{name}'", fact, "Give each a name of its own")


def _devices_faults(found: DeviceConfigurationProto, where: str) -> Iterator[Fault]:
    if found.num_devices < 1:
        said = f"it has {found.num_devices} devices" if found.HasField("num_devices") else "it does not say num_devices"
        yield Fault("TP165", where, said, "Say how many devices it has, 1 or more")
    elif found.num_devices > MOST_DEVICES:
        fact = f"it has {found.num_devices} devices, and no more than {MOST_DEVICES} are checked"
        yield Fault("TP165", where, fact, "Check a configuration of fewer")
    if found.device and len(found.device) != found.num_devices:
        fact = f"it has {found.num_devices} devices and names {len(found.device)}"
        yield Fault("TP165", where, fact, "Name all of them, or none")


def unknown_configurations(proto: NodeProto, where: str, known: Iterable[str]) -> Iterator[Fault]:
    """Entries of a node for configurations that the model does not have."""
    names = set(known)
    for entry in proto.device_configurations:
        if not entry.configuration_id:
            fact = "an annotation does not say of which configuration it is"
            yield Fault("TP166", where, fact, "Say its configuration_id")
        elif entry.configuration_id not in names:
            shown = ", ".join(f"'{name}'" for name in sorted(names)[:8])
            remedy = f"Use {shown}" if names else "Add it to the model's configurations"
            yield Fault("TP166", where, f"the model has no configuration '{entry.configuration_id}'", remedy)


def _entry_faults(found: Sequence[NodeDeviceConfigurationProto], where: str, name: str) -> Iterator[Fault]:
    if len(found) > 1:
        yield Fault("TP166", where, f"it has {len(found)} annotations of configuration '{name}'", "Make them one")
    if found[0].pipeline_stage < 0:
        yield Fault("TP166", where, f"its pipeline stage is {found[0].pipeline_stage}", "Use 0 or more")


def _tensor_fault(spec: ShardingSpecProto, own: set[str], seen: Iterable[str], where: str) -> Fault | None:
    name = spec.tensor_name
    if not name:
        return Fault("TP167", where, "an annotation does not say of which tensor it is", "Say its tensor_name")
    if name not in own:
        shown = ", ".join(sorted(own)[:8])
        return Fault("TP167", where, f"it has no tensor '{name}'", f"Use one that it reads or makes: {shown}")
    if name in seen:
        return Fault("TP167", where, f"it says twice how '{name}' lies", "Say it once")
    return None

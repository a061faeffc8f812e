"""Which process group a label of a rank program means: "0,2" are tensor-parallel ranks 0 and 2 of this process's own.

A world of dp × tp processes runs dp replicas of a model that is cut in tp parts; neighbours hold parts of one replica.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import lru_cache

import torch
import torch.distributed as dist

from tpcompile.errors import Refused, refuse


@dataclass(frozen=True)
class Groups:
    """The process groups of this process.

    Attributes:
        tp: number of tensor-parallel ranks.
        dp: number of replicas of the model.
        rank: this process's tensor-parallel rank, 0 … tp − 1.
        replica: which replica this process holds a part of, 0 … dp − 1.
        data_parallel: the processes that hold the same part, one of each replica: what DistributedDataParallel takes.
        by_label: per label the group of this process's replica, for the labels that this process is in.
        world: the default group that all of it was made in.
    """

    tp: int
    dp: int
    rank: int
    replica: int
    data_parallel: dist.ProcessGroup
    by_label: dict[str, dist.ProcessGroup]
    world: dist.ProcessGroup
    _known: frozenset[str] = field(repr=False)


_groups: Groups | None = None


def use(tp: int, labels: Iterable[str] = (), device: torch.device | str | None = None) -> Groups:
    """Make the process groups that rank programs with these `labels` need; all processes call it together.

    Each process gives the labels of its own program (`labels_of`); groups are made for those of all, in one order,
    so that none waits for another. A later call with the same `tp` keeps the groups that are there.

    Args:
        tp: number of tensor-parallel ranks; the default process group has a multiple of it.
        labels: groups beside that of all ranks, which is always made.
        device: where tensors for the default group's backend lie; None: this process's GPU for nccl, else the CPU.

    Raises:
        Refused: TP750 no default process group, or processes that differ in `tp`; TP751 a label that is none;
            TP752 a number of processes that is no multiple of `tp`.
    """
    global _groups
    if not dist.is_available() or not dist.is_initialized():
        remedy = "Start the script with torchrun and call torch.distributed.init_process_group() first"
        raise refuse("TP750", "groups.use", "there is no default process group", remedy)
    size, world = dist.get_world_size(), dist.group.WORLD
    assert world is not None
    if tp < 1 or size % tp:
        raise wrong_world(f"groups.use(tp={tp})", tp, size)
    wanted = {label_of(range(tp)), *labels}
    for label in wanted:
        check_label(label, tp)
    wanted = _labels_of_all(tp, wanted, device)
    before = _groups if _groups is not None and _groups.world is world and _groups.tp == tp else None
    known = frozenset(wanted) if before is None else before._known | wanted
    place = dist.get_rank()
    by_label = {} if before is None else dict(before.by_label)
    for label in sorted(known if before is None else known - before._known):
        for first in range(0, size, tp):
            group = _group([first + rank for rank in members(label)])
            if first == place // tp * tp and place % tp in members(label):
                by_label[label] = group
    if before is None:
        across = [_group(list(range(rank, size, tp))) for rank in range(tp)]
        data_parallel = across[place % tp]
    else:
        data_parallel = before.data_parallel
    _groups = Groups(tp, size // tp, place % tp, place // tp, data_parallel, by_label, world, known)
    return _groups


def wrong_world(where: str, tp: int, size: int) -> Refused:
    """TP752: `size` processes for `tp` ranks."""
    remedy = f"Start {tp} processes, or several times as many: torchrun --nproc-per-node {max(tp, 1)} …"
    return refuse("TP752", where, f"{size} processes are no multiple of {tp} tensor-parallel ranks", remedy)


def current() -> Groups:
    """The groups that `use` made.

    Raises:
        Refused: TP750 it was not called in this process, or its default process group is gone.
    """
    if _groups is None or not dist.is_initialized() or _groups.world is not dist.group.WORLD:
        remedy = "Call tpcompile.torch.groups.use(tp, labels_of(program)) after init_process_group, in all processes"
        raise refuse("TP750", "tpcompile", "a collective runs, and nothing says which processes are its group", remedy)
    return _groups


def group_of(label: str) -> dist.ProcessGroup:
    """The process group of `label` in this process's replica.

    Raises:
        Refused: TP750 no groups were made; TP751 none of this label was, or this process is not in it.
    """
    groups = current()
    if label not in groups.by_label:
        if label in groups._known:
            fact = f"tensor-parallel rank {groups.rank} runs a collective of a group that it is not in"
            raise refuse("TP751", f"group {label!r}", fact, "Give each process the program of its own rank")
        remedy = "Pass it to groups.use: `use(tp, labels_of(program))`"
        raise refuse("TP751", f"group {label!r}", "no such group was made", remedy)
    return groups.by_label[label]


def position(label: str) -> int:
    """This process's place in the group of `label`, from 0.

    Raises:
        Refused: as `group_of`.
    """
    group_of(label)
    return members(label).index(current().rank)


@lru_cache(maxsize=1024)
def members(label: str) -> tuple[int, ...]:
    """The tensor-parallel ranks that `label` lists.

    Raises:
        Refused: TP751 for a label that is none: "0,1,2" and "3" are.
    """
    ranks = tuple(int(part) for part in label.split(",") if part.isascii() and part.isdigit())
    if label_of(ranks) != label or list(ranks) != sorted(set(ranks)) or not ranks:
        remedy = 'It lists tensor-parallel ranks in ascending order, as "0,1,2,3" does'
        raise refuse("TP751", f"group {label!r}", "is no group of ranks", remedy)
    return ranks


def label_of(ranks: Iterable[int]) -> str:
    """The label of a group of tensor-parallel ranks: "0,1"."""
    return ",".join(str(rank) for rank in ranks)


def check_label(label: str, tp: int) -> None:
    """Refuse (TP751) a label that is none, or one of ranks that do not exist."""
    if members(label)[-1] >= tp:
        raise refuse("TP751", f"group {label!r}", f"names a rank that {tp} tensor-parallel ranks do not have",
                     f"Ranks are 0 to {tp - 1}")  # fmt: skip


def labels_of(program: torch.export.ExportedProgram | torch.fx.GraphModule) -> tuple[str, ...]:
    """The labels of the groups in which a rank program communicates, sorted."""
    found = set()
    for node in program.graph.nodes:
        if node.op == "call_function" and getattr(node.target, "namespace", "") == "tpcompile":
            names = [argument.name for argument in node.target._schema.arguments]
            given = dict(zip(names, node.args, strict=False)) | node.kwargs
            if "group" in given:
                found.add(str(given["group"]))
    return tuple(sorted(found))


def _group(ranks: list[int]) -> dist.ProcessGroup:
    """A group of these processes; the default group where that is all of them."""
    world = dist.group.WORLD
    if len(ranks) == dist.get_world_size() and world is not None:
        return world
    made: dist.ProcessGroup = dist.new_group(ranks)
    return made


def _labels_of_all(tp: int, labels: set[str], device: torch.device | str | None) -> set[str]:
    """The labels that any process gives."""
    said = [text.split(";") for text in exchange(";".join([str(tp), *sorted(labels)]), device)]
    if len({first for first, *_ in said}) > 1:
        fact = f"processes want different numbers of ranks: {', '.join(first for first, *_ in said)}"
        raise refuse("TP750", "groups.use", fact, "Call it with the same tp in all processes")
    return {label for _, *some in said for label in some}


def exchange(text: str, device: torch.device | str | None = None) -> list[str]:
    """What each process of the default group says; all call it together. Nothing that another one sends is unpickled.

    `device` is where tensors for the group's backend lie; None: this process's GPU for nccl, else the CPU.
    """
    if device is None:
        on_gpu = dist.get_backend() == "nccl"
        device = torch.device("cuda", torch.cuda.current_device()) if on_gpu else torch.device("cpu")
    mine, size = text.encode(), dist.get_world_size()
    lengths = [torch.zeros(1, dtype=torch.int64, device=device) for _ in range(size)]
    dist.all_gather(lengths, torch.tensor([len(mine)], device=device))
    longest = max(int(length) for length in lengths)
    texts = [torch.zeros(longest, dtype=torch.uint8, device=device) for _ in range(size)]
    dist.all_gather(texts, torch.tensor(list(mine.ljust(longest, b"\0")), dtype=torch.uint8, device=device))
    return [bytes(found.tolist())[: int(length)].decode() for found, length in zip(texts, lengths, strict=True)]

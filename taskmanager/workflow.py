"""`Workflow` and `Node`: a graph of tasks while it is defined. Nothing here runs or stores anything.

What one call gets wrong is refused at the call. `workflow_graph.py` checks the rest at the start, and makes the rows.
"""

import re
from collections.abc import Collection, Coroutine
from typing import Any, Final, Generic, NamedTuple, ParamSpec, Self, TypeVar, cast, get_args, overload

from typing_extensions import TypeVar as TypeVarWithDefault

from taskmanager.codec.annotations import signature_of
from taskmanager.model.call_options import NO_OPTIONS, CallOptions
from taskmanager.model.config import is_int, name_fault, raise_faults
from taskmanager.model.errors import ConfigurationError
from taskmanager.model.placeholder import Placeholder
from taskmanager.model.result import Snooze, TaskResult
from taskmanager.model.workflows import Join, OnError
from taskmanager.task import Task, TaskCall

P = ParamSpec("P")
R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)
W_co = TypeVarWithDefault("W_co", covariant=True, default=Any)

MAX_NODE_ID: Final = 128
_ALLOWED: Final = "A-Za-z0-9_:.-"


class After(NamedTuple):
    """When a node may begin, as its `after` has said it."""

    join: Join = "all"
    min_success: int | None = None
    allow_failed: bool = False

    def faults(self) -> list[str]:
        """Return what is wrong with it, whatever the nodes are."""
        found = []
        if self.join not in get_args(Join):
            found.append(f"join must be 'all', 'any' or 'quorum', not {self.join!r}")
        if not isinstance(self.allow_failed, bool):
            found.append(f"allow_failed must be True or False, not {self.allow_failed!r}")
        if self.join != "quorum" and self.min_success is not None:
            found.append("min_success means nothing without join='quorum'; give it that join, or leave it out")
        if self.join == "quorum" and not (is_int(self.min_success) and self.min_success >= 1):  # type: ignore[operator]  # shown by is_int
            found.append(
                f"join='quorum' needs min_success, a whole number from 1 to that of the nodes, not {self.min_success!r}"
            )
        return found


_AT_ONCE: Final = After()


class Node(Generic[R_co]):
    """One task of a workflow, or a whole child workflow in it. `Workflow.add` and `add_workflow` make it.

    `node_id` names it in the workflow; it is `name:index` unless `named` has given another one.
    """

    __slots__ = ("after_nodes", "args", "child", "how", "index", "kwargs", "node_id", "options", "task", "workflow")

    node_id: str

    def __init__(self, workflow: "Workflow[Any]", name: str) -> None:
        self.workflow = workflow
        self.index = len(workflow.nodes)
        self.node_id = default_node_id(name, self.index)
        self.task: Task[..., Any] | None = None
        self.options: CallOptions = NO_OPTIONS
        self.args: tuple[Any, ...] = ()
        self.kwargs: dict[str, Any] = {}
        self.child: Workflow[Any] | None = None
        self.after_nodes: dict[int, Node[Any]] = {}
        """What `after` has named, by index."""
        self.how = _AT_ONCE
        workflow.nodes.append(self)

    @property
    def value(self) -> R_co:
        """What stands for its value: an argument of another node, which then runs after it and needs it COMPLETED."""
        return cast("R_co", Placeholder(self, "value"))

    @property
    def result(self) -> TaskResult[R_co]:
        """The same for its `TaskResult`: the other node runs when this one has ended, however it has."""
        return cast("TaskResult[R_co]", Placeholder(self, "result"))

    def named(self, node_id: str, /) -> Self:
        """Give it an id: 1 to 128 letters, digits and `_-:.`. Raises `ConfigurationError` for any other."""
        if fault := node_id_fault(node_id):
            raise ConfigurationError(f"{self}: {fault}")
        self.node_id = node_id
        return self

    def after(
        self, *nodes: "Node[Any]", join: Join = "all", min_success: int | None = None, allow_failed: bool = False
    ) -> Self:
        """Begin after these nodes of the same workflow: after all of them, any of them, or `min_success` of them.

        With `allow_failed` it runs, too, when some of them have failed. Raises `ConfigurationError` for options that do
        not fit, and for others than those of an earlier `after` of this node.
        """
        how = After(join, min_success, allow_failed)
        faults = how.faults() + [fault for each in nodes if (fault := self.workflow.fault_of(each))]
        if not nodes:
            faults.append("it names no node")
        if self.after_nodes and how != self.how:
            faults.append(
                f"a node has one way to wait, and this one has {self.how}; name all nodes with the same options"
            )
        raise_faults(f"{self}: after", faults)
        self.how = how
        self.after_nodes |= {each.index: each for each in nodes}
        return self

    def __repr__(self) -> str:
        return f"<Node {self.node_id!r} of workflow {self.workflow.name!r}>"

    def __str__(self) -> str:
        return f"workflow {self.workflow.name!r}: node {self.node_id!r}"


class Workflow(Generic[W_co]):
    """A graph of tasks. Add nodes to it, then start it: `await manager.start_workflow(workflow)`, as often as you like.

    `on_error` says what a failure does that nothing absorbs: "fail" lets the other branches end, and then fails;
    "pause" starts nothing more until `resume`. Raises `ConfigurationError` for a wrong name or option.
    """

    __slots__ = ("cases", "name", "nodes", "on_error", "optional_nodes", "output_node")

    def __init__(self, name: str, /, *, on_error: OnError = "fail") -> None:
        faults = [fault] if (fault := name_fault(name)) else []
        if on_error not in get_args(OnError):
            faults.append(f"on_error must be 'fail' or 'pause', not {on_error!r}")
        raise_faults("Workflow", faults)
        self.name = name
        self.on_error: OnError = on_error
        self.nodes: list[Node[Any]] = []
        self.output_node: Node[Any] | None = None
        self.cases: list[tuple[Node[Any], ...]] = []
        self.optional_nodes: dict[int, Node[Any]] = {}

    @overload
    def add(
        self, task: TaskCall[P, Coroutine[Any, Any, TaskResult[R] | Snooze]], /, *args: P.args, **kwargs: P.kwargs
    ) -> Node[R]: ...
    @overload
    def add(
        self, task: TaskCall[P, Coroutine[Any, Any, R | Snooze]], /, *args: P.args, **kwargs: P.kwargs
    ) -> Node[R]: ...
    @overload
    def add(self, task: TaskCall[P, TaskResult[R] | Snooze], /, *args: P.args, **kwargs: P.kwargs) -> Node[R]: ...
    @overload
    def add(self, task: TaskCall[P, R | Snooze], /, *args: P.args, **kwargs: P.kwargs) -> Node[R]: ...
    def add(self, task: Any, /, *args: Any, **kwargs: Any) -> Node[Any]:
        """Add a call of a task, with or without options, and return its node.

        `node.value` and `node.result` of other nodes may be arguments, also in lists, tuples and values of dicts. A
        `delay` counts from when the node is ready. Raises `ConfigurationError` for arguments that the function does not
        take, and for options that are meant for one call.
        """
        if not isinstance(task, TaskCall):
            raise ConfigurationError(
                f"workflow {self.name!r}: {task!r} is not a task; decorate the function with @manager.task, and add it"
            )
        of, options = task._task, task._options  # noqa: SLF001  # it is of this package
        subject = f"workflow {self.name!r}: {of.name}"
        try:
            signature_of(of.fn).bind(*args, **kwargs)
        except TypeError as exc:
            raise ConfigurationError(f"{subject} cannot be called with these arguments: {exc}") from None
        faults = [f"{each!r} is no argument; pass its .value or its .result" for each in args if isinstance(each, Node)]
        if fault := options.fault_in_many_calls("task", of.name):
            faults.append(fault)
        raise_faults(subject, faults)
        node: Node[Any] = Node(self, of.name)
        node.task, node.options, node.args, node.kwargs = of, options, args, kwargs
        return node

    def add_workflow(self, child: "Workflow[R]", /, *, node_id: str | None = None) -> Node[R]:
        """Add a whole workflow as one node, which ends as the child does. Its value is the child's output.

        The child may use values of this workflow; then it waits for them. Raises `ConfigurationError` for what is no
        workflow, and for a wrong id.
        """
        if not isinstance(child, Workflow):
            raise ConfigurationError(f"workflow {self.name!r}: {child!r} is not a workflow; use add(...) for a task")
        if node_id is not None and (fault := node_id_fault(node_id)):
            raise ConfigurationError(f"workflow {self.name!r}: {fault}")
        node: Node[R] = Node(self, child.name)
        node.child, node.node_id = child, node_id or node.node_id
        return node

    def output(self, node: Node[R], /) -> "Workflow[R]":
        """Make the value of this node that of the workflow. Return the workflow, typed."""
        raise_faults(f"workflow {self.name!r}: output", [fault] if (fault := self.fault_of(node)) else [])
        self.output_node = node
        return cast("Workflow[R]", self)

    def succeeds_if(self, *cases: Collection[Node[Any]]) -> Self:
        """Let it succeed if all nodes of any of these cases are COMPLETED, whatever the others are."""
        faults = [] if cases else ["it names no case"]
        for case in cases:
            if isinstance(case, Node) or not isinstance(case, Collection):
                faults.append(f"each case is a collection of nodes, such as [first, second], not {case!r}")
            elif not case:
                faults.append("a case without nodes would always be met; name the nodes that it needs")
            else:
                faults += [fault for each in case if (fault := self.fault_of(each))]
        raise_faults(f"workflow {self.name!r}: succeeds_if", faults)
        self.cases += map(tuple, cases)
        return self

    def optional(self, *nodes: Node[Any]) -> Self:
        """Let these nodes fail without failing the workflow."""
        faults = [fault for each in nodes if (fault := self.fault_of(each))]
        raise_faults(f"workflow {self.name!r}: optional", faults)
        self.optional_nodes |= {each.index: each for each in nodes}
        return self

    def fault_of(self, node: object) -> str | None:
        """Return why this is no node of the workflow, or None if it is one."""
        if not isinstance(node, Node):
            return f"{node!r} is no node; give what add(...) returned"
        return None if node.workflow is self else f"{node!r} stands in another workflow; name nodes of this one"

    def __repr__(self) -> str:
        return f"<Workflow {self.name!r} of {len(self.nodes)} nodes>"


def node_id_fault(node_id: object) -> str | None:
    """Return what is wrong with the id of a node, or None."""
    if isinstance(node_id, str) and re.fullmatch(f"[{_ALLOWED}]{{1,{MAX_NODE_ID}}}", node_id):
        return None
    return f"the id of a node must be 1 to {MAX_NODE_ID} letters, digits and _-:. and not {node_id!r}"


def default_node_id(name: str, index: int) -> str:
    """Return the id of a node that nobody has named."""
    end = f":{index}"
    return re.sub(f"[^{_ALLOWED}]", "_", name)[: MAX_NODE_ID - len(end)] + end

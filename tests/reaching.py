"""Finds calls and assignments that reach through one part into another: `x.a.b(...)` and `x.a.b = ...`.

`x` is a parameter, or a part that an object holds; `b` is defined in another module than the class that has `a`. Types
are told from annotations: of parameters, fields and properties, and of `self.a = Class(...)`. Where that of `x` is not
known, every class that has an `a` counts.
"""

import ast
from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple

_WRAPPERS: Final = frozenset({"Final", "Optional", "ClassVar"})


class _Class(NamedTuple):
    """One class: the module that it stands in, and of each attribute the name of its type, where it is known."""

    path: str
    attributes: dict[str, str | None]
    bases: tuple[str, ...]


class Reaching:
    """All classes of a package, by name, and what reaches through them."""

    def __init__(self, trees: Mapping[str, ast.Module]) -> None:
        self._classes = {
            node.name: _class_of(path, node)
            for path, tree in trees.items()
            for node in ast.walk(tree)
            if isinstance(node, ast.ClassDef)
        }

    def faults(self, path: str, tree: ast.Module) -> Iterator[str]:
        """One line for each expression of a module."""
        yield from self._in_body(path, tree, {}, None)

    def _in_body(self, path: str, node: ast.AST, known: Mapping[str, str | None], owner: str | None) -> Iterator[str]:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.ClassDef):
                yield from self._in_body(path, child, {}, child.name)
                continue
            if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
                yield from self._in_body(path, child, self._names_in(child, known, owner), owner)
                continue
            targets: list[ast.expr] = []
            if isinstance(child, ast.Call):
                targets = [child.func]
            elif isinstance(child, ast.Assign):
                targets = child.targets
            elif isinstance(child, ast.AugAssign | ast.AnnAssign):
                targets = [child.target]
            for target in targets:
                if self._reaches(target, known):
                    yield f"{path}:{target.lineno}: {ast.unparse(target)}"
            yield from self._in_body(path, child, known, owner)

    def _names_in(
        self, node: ast.FunctionDef | ast.AsyncFunctionDef, outer: Mapping[str, str | None], owner: str | None
    ) -> dict[str, str | None]:
        """Parameters and local variables with their types."""
        names = {**outer, **_parameters(node)}
        if owner is not None and node.args.args and node.args.args[0].arg == "self":
            names["self"] = owner
        for each in ast.walk(node):
            for target, value in _assigned(each):
                if isinstance(target, ast.Name) and names.get(target.id) is None:
                    names[target.id] = self._type_of(value, names)
        return names

    def _reaches(self, target: ast.expr, names: Mapping[str, str | None]) -> bool:
        """Whether `target` is `x.a.b`, or goes on behind one."""
        if not isinstance(target, ast.Attribute) or not isinstance(target.value, ast.Attribute):
            return False
        if self._reaches(target.value, names):
            return True
        part = target.value
        if isinstance(part.value, ast.Name) and part.value.id in ("self", "cls"):
            return False
        for path, type_name in self._owners(part, names):
            found = None if type_name is None else self._find(type_name, target.attr)
            if found is not None and found[0] != path:
                return True
        return False

    def _owners(self, part: ast.Attribute, names: Mapping[str, str | None]) -> list[tuple[str, str | None]]:
        """Where the attribute of `x.a` is defined, and its type: once, or for each class that may be meant."""
        type_name = self._type_of(part.value, names)
        if type_name in self._classes:
            found = self._find(type_name, part.attr)
            return [] if found is None else [found]
        every = self._classes.values()
        return [(each.path, each.attributes[part.attr]) for each in every if part.attr in each.attributes]

    def _find(self, class_name: str, attribute: str) -> tuple[str, str | None] | None:
        """The module of the class that defines the attribute, itself or a base of it, and the attribute's type."""
        found = self._classes.get(class_name)
        if found is None:
            return None
        if attribute in found.attributes:
            return found.path, found.attributes[attribute]
        return next(filter(None, (self._find(base, attribute) for base in found.bases if base != class_name)), None)

    def _type_of(self, node: ast.expr, names: Mapping[str, str | None]) -> str | None:
        if isinstance(node, ast.Name):
            return names.get(node.id)
        if isinstance(node, ast.Call):
            return _made_by(node)
        if not isinstance(node, ast.Attribute):
            return None
        types = {type_name for _, type_name in self._owners(node, names) if type_name in self._classes}
        return types.pop() if len(types) == 1 else None


def _class_of(path: str, node: ast.ClassDef) -> _Class:
    attributes: dict[str, str | None] = {}
    for each in node.body:
        if isinstance(each, ast.AnnAssign) and isinstance(each.target, ast.Name):
            attributes[each.target.id] = _named_by(each.annotation)
        elif isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef):
            is_property = any("property" in ast.unparse(decorator) for decorator in each.decorator_list)
            attributes[each.name] = _named_by(each.returns) if is_property else None
            _note_own(attributes, each)
        for target, value in _assigned(each):
            if isinstance(target, ast.Name):
                attributes.setdefault(target.id, _made_by(value))
    return _Class(path, attributes, tuple(base.id for base in node.bases if isinstance(base, ast.Name)))


def _note_own(attributes: dict[str, str | None], method: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
    """Add what a method assigns to attributes of `self`."""
    parameters = _parameters(method)
    for node in ast.walk(method):
        if isinstance(node, ast.AnnAssign) and _is_own(node.target):
            assert isinstance(node.target, ast.Attribute)
            attributes[node.target.attr] = _named_by(node.annotation)
        for target, value in _assigned(node):
            if _is_own(target):
                assert isinstance(target, ast.Attribute)
                known = parameters.get(value.id) if isinstance(value, ast.Name) else _made_by(value)
                attributes[target.attr] = attributes.get(target.attr) or known


def _is_own(target: ast.expr) -> bool:
    return isinstance(target, ast.Attribute) and isinstance(target.value, ast.Name) and target.value.id == "self"


def _parameters(node: ast.FunctionDef | ast.AsyncFunctionDef) -> dict[str, str | None]:
    arguments = node.args
    every = (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)
    return {each.arg: _named_by(each.annotation) for each in every}


def _assigned(node: ast.AST) -> Iterator[tuple[ast.expr, ast.expr]]:
    """Targets with their values; those of `a, b = c, d` one by one."""
    if not isinstance(node, ast.Assign):
        return
    for target in node.targets:
        if isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple):
            yield from zip(target.elts, node.value.elts, strict=False)
        else:
            yield target, node.value


def _made_by(value: ast.expr) -> str | None:
    """The class that `Class(...)` calls, also in `Class(...) if ... else None`."""
    if isinstance(value, ast.IfExp):
        return _made_by(value.body) or _made_by(value.orelse)
    return value.func.id if isinstance(value, ast.Call) and isinstance(value.func, ast.Name) else None


def _named_by(annotation: ast.expr | None) -> str | None:
    """The class that an annotation names: `A`, `"A"`, `A | None`, `Final[A]`, and `dict` for `dict[str, A]`."""
    if isinstance(annotation, ast.Constant) and isinstance(annotation.value, str):
        return _named_by(ast.parse(annotation.value, mode="eval").body)
    if isinstance(annotation, ast.Name):
        return annotation.id
    if isinstance(annotation, ast.BinOp):
        return _named_by(annotation.left) or _named_by(annotation.right)
    if isinstance(annotation, ast.Subscript):
        name = _named_by(annotation.value)
        return _named_by(annotation.slice) if name in _WRAPPERS else name
    return None

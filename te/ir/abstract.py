"""Abstract classes with a fast `isinstance`."""

from __future__ import annotations

from abc import ABCMeta

__all__ = ["Abstract"]


class _Abstract(ABCMeta):
    """`ABCMeta` without virtual subclasses, whose lookup makes `isinstance` six times as slow."""

    __instancecheck__ = type.__instancecheck__


class Abstract(metaclass=_Abstract):
    """Base of classes with abstract methods (`abc.abstractmethod`) that passes test with `isinstance`."""

    __slots__ = ()

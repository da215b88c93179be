"""Abstract classes whose instances are told as quickly as those of any class."""

from __future__ import annotations

from abc import ABCMeta

__all__ = ["Abstract"]


class _Abstract(ABCMeta):
    """`ABCMeta` without virtual subclasses, which `isinstance` would ask for at six times the price."""

    __instancecheck__ = type.__instancecheck__


class Abstract(metaclass=_Abstract):
    """Base of a class with abstract methods (`abc.abstractmethod`) that passes test the instances of."""

    __slots__ = ()

"""The types of deliver-order, field by field as the contract in ``pipeline.yaml`` has them."""

from __future__ import annotations

from attrs import frozen


@frozen
class DeliveryOrder:
    """What is submitted."""

    order_number: str
    customer: str
    address: str
    courier: str  # swift | busy | gone
    packing_ms: int  # how long packing takes


@frozen
class CheckedOrder:
    """An order that makes sense."""

    order_number: str
    customer: str
    address: str
    courier: str
    packing_ms: int


@frozen
class Parcel:
    """What the courier gets."""

    order_number: str
    label: str
    address: str
    courier: str


@frozen
class ParcelOnItsWay:
    """What the courier has taken."""

    order_number: str
    courier: str
    tracking_number: str  # a function of the execution: the same in every attempt


@frozen
class DeliveryConfirmation:
    """How the order ended."""

    order_number: str
    tracking_number: str
    summary: str  # a sentence for a person

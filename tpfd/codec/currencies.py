"""ISO 4217: which codes exist, and how many decimals an amount in each can have.

Source:
    ISO 4217, list one (current currencies and funds).
"""

from __future__ import annotations

from collections.abc import Mapping

_TWO = """
AED AFN ALL AMD AOA ARS AUD AWG AZN BAM BBD BDT BGN BMD BND BOB BOV BRL BSD BTN BWP BYN BZD CAD CDF CHE CHF CHW CNY COP
COU CRC CUP CVE CZK DKK DOP DZD EGP ERN ETB EUR FJD FKP GBP GEL GHS GIP GMD GTQ GYD HKD HNL HTG HUF IDR ILS INR IRR JMD
KES KGS KHR KPW KYD KZT LAK LBP LKR LRD LSL MAD MDL MGA MKD MMK MNT MOP MRU MUR MVR MWK MXN MXV MYR MZN NAD NGN NIO NOK
NPR NZD PAB PEN PGK PHP PKR PLN QAR RON RSD RUB SAR SBD SCR SDG SEK SGD SHP SLE SOS SRD SSP STN SVC SYP SZL THB TJS TMT
TOP TRY TTD TWD TZS UAH USD USN UYU UZS VED VES WST XAD XCD XCG YER ZAR ZMW ZWG
"""
_BY_DECIMALS: Mapping[int, str] = {
    0: "BIF CLP DJF GNF ISK JPY KMF KRW PYG RWF UGX UYI VND VUV XAF XOF XPF",
    2: _TWO,
    3: "BHD IQD JOD KWD LYD OMR TND",
    4: "CLF UYW",
}
_WITHOUT = "XAG XAU XBA XBB XBC XBD XDR XPD XPT XSU XTS XUA XXX"

MINOR_UNITS: Mapping[str, int] = {
    code: decimals for decimals, codes in _BY_DECIMALS.items() for code in codes.split()
}
"""Decimals by code: EUR 2, JPY 0, KWD 3. Metals, units of account and test codes have none and are not in it."""

CODES = frozenset(MINOR_UNITS) | frozenset(_WITHOUT.split())
"""Every code."""

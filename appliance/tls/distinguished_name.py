"""The subject of a certificate as text, most specific part first: `CN=ann,OU=logs,O=example`.

The text is that of RFC 2253 as Java writes it, because `ssl.principal.mapping.rules` and ACLs of Kafka contain it:

    keywords         CN OU O L ST C STREET DC UID; any other type is a dotted number, and its value is # and hex
    escaped by \\     , = + < > # ; " \\ anywhere, and spaces at both ends

It is read from the certificate's DER bytes. Python's own reading of a subject is in the other order and escapes
nothing, so that a certificate could choose a name that reads as another's.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from appliance.errors import ClientFault

_KEYWORDS: Final = {
    "2.5.4.3": "CN",
    "2.5.4.6": "C",
    "2.5.4.7": "L",
    "2.5.4.8": "ST",
    "2.5.4.9": "STREET",
    "2.5.4.10": "O",
    "2.5.4.11": "OU",
    "0.9.2342.19200300.100.1.25": "DC",
    "0.9.2342.19200300.100.1.1": "UID",
}
_ESCAPED: Final = ',=+<>#;"\\'
# UTF8String, PrintableString, T61String, IA5String, GeneralString, UniversalString, BMPString
_TEXT_TAGS: Final = frozenset({0x0C, 0x13, 0x14, 0x16, 0x1B, 0x1C, 0x1E})
_SEQUENCE: Final = 0x30
_SET: Final = 0x31
_VERSION: Final = 0xA0
_OID: Final = 0x06
_SUBJECT_AT: Final = 4
"""In a TBSCertificate behind the version: serial number, algorithm, issuer, validity, subject."""


def subject_of(certificate: bytes) -> str:
    """Return the name of the subject of a DER certificate.

    Raises:
        ClientFault: it is no certificate.
    """
    try:
        (_, whole), *_ = _elements(certificate)
        (_, signed), *_ = _elements(whole)
        fields = list(_elements(signed))
        if fields[0][0] == _VERSION:
            del fields[0]
        tag, name = fields[_SUBJECT_AT]
        if tag != _SEQUENCE:
            raise ClientFault("a certificate's subject is not a sequence")
        return ",".join(reversed([_part(part) for part in _elements(name)]))
    except (ValueError, IndexError) as error:
        raise ClientFault(f"a certificate cannot be read: {error}") from error


def _part(part: tuple[int, bytes]) -> str:
    if part[0] != _SET:
        raise ValueError("a part of the subject is not a set")
    return "+".join(_attribute(attribute) for _, attribute in _elements(part[1]))


def _attribute(attribute: bytes) -> str:
    (tag, dotted), (value_tag, value) = _elements(attribute)
    if tag != _OID:
        raise ValueError("an attribute has no type")
    keyword = _KEYWORDS.get(name := _dotted(dotted))
    if keyword is None or value_tag not in _TEXT_TAGS:
        return f"{keyword or name}=#{attribute[len(attribute) - _encoded_length(value) :].hex()}"
    return f"{keyword}={_escaped(value.decode('utf-8', 'replace'))}"


def _escaped(text: str) -> str:
    written = ["\\" + each if each in _ESCAPED else "\\00" if each == "\0" else each for each in text]
    lead, trail = 0, len(text)
    while lead < trail and text[lead] in " \r":
        written[lead] = "\\" + text[lead]
        lead += 1
    while trail > lead and text[trail - 1] in " \r":
        trail -= 1
        written[trail] = "\\" + text[trail]
    return "".join(written)


def _dotted(oid: bytes) -> str:
    numbers: list[int] = []
    number = 0
    for byte in oid:
        number = number << 7 | byte & 0x7F
        if not byte & 0x80:
            numbers.append(number)
            number = 0
    first = min(numbers[0] // 40, 2)
    return ".".join(map(str, (first, numbers[0] - 40 * first, *numbers[1:])))


def _elements(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield tag and contents of each element. Raises ValueError where a length cannot be."""
    position = 0
    while position < len(data):
        tag, length, head = data[position], data[position + 1], 2
        if length & 0x80:
            count = length & 0x7F
            if not 1 <= count <= 4:
                raise ValueError("a length of this form is not DER")
            length = int.from_bytes(data[position + 2 : position + 2 + count], "big")
            head += count
        position += head
        if position + length > len(data):
            raise ValueError("an element is longer than what holds it")
        yield tag, data[position : position + length]
        position += length


def _encoded_length(contents: bytes) -> int:
    """Return how long an element with these contents is, with its tag and length."""
    length = len(contents)
    return length + 2 + (0 if length < 0x80 else (length.bit_length() + 7) // 8)

"""CRC-32Cs of bytes that are known by their parts, without reading the bytes again.

A CRC is linear: of two pieces, it is the CRC of the first one times x^(8n), plus that of the second one, of n bytes. So
where the first piece changes, the CRC of the whole changes by the difference of the first pieces' CRCs times x^(8n).
Both are polynomials over GF(2), modulo that of CRC-32C (RFC 3720). zlib's `crc32_combine` does the same for CRC-32.

A polynomial is an integer here whose bytes are the coefficients, 0 or 1. No sum of 32 products overflows its byte, so
Python's own multiplication multiplies polynomials: the sums are odd where the coefficient is 1.
"""

from __future__ import annotations

from functools import lru_cache

BITS = 32
ZEROS = b"0" * BITS
ONES = int.from_bytes(b"\1" * 2 * BITS, "little")  # the odd bits of all coefficients
LOW = int.from_bytes(b"\1" * BITS, "little")
POLYNOMIAL = 0x1EDC6F41  # without x^32
DIGITS, DIGIT_BITS = 8, 4  # of a length in bytes


def behind(crc: int, count: int) -> int:
    """Returns the share of a CRC-32C in that of a whole in which `count` bytes follow.

    The CRC of the whole is this share, XOR the CRC of the bytes that follow.
    """
    return _number(_product(_polynomial(crc), _power(count)))


def _polynomial(crc: int) -> int:
    """Returns a CRC as polynomial; its highest bit is the coefficient of x^0."""
    return int.from_bytes(f"{crc:032b}".encode(), "little") & LOW


def _number(polynomial: int) -> int:
    return int((polynomial | int.from_bytes(ZEROS, "little")).to_bytes(BITS, "little"), 2)


def _of_bits(bits: int) -> int:
    """Returns a polynomial whose coefficient of x^0 is the lowest bit."""
    return int.from_bytes(f"{bits:b}".encode()[::-1], "little") & ONES


def _quotient(bits: int, divisor: int) -> int:
    """Divides polynomials whose coefficients are bits."""
    found, size = 0, divisor.bit_length()
    while bits.bit_length() >= size:
        step = bits.bit_length() - size
        found |= 1 << step
        bits ^= divisor << step
    return found


MODULUS = _of_bits(1 << BITS | POLYNOMIAL)
BARRETT = _of_bits(_quotient(1 << 2 * BITS, 1 << BITS | POLYNOMIAL))


def _product(first: int, second: int) -> int:
    """Multiplies two polynomials modulo that of CRC-32C, by Barrett's reduction."""
    whole = first * second & ONES
    multiple = ((whole >> 8 * BITS) * BARRETT & ONES) >> 8 * BITS
    return (whole ^ multiple * MODULUS) & LOW


def _powers() -> list[list[int]]:
    """Returns x^(8n) for each digit of n: for n = 0, 1, … 15, then for n = 0, 16, … 240, and so on."""
    found, base = [], _of_bits(1 << 8)
    for _ in range(DIGITS):
        digit = [_of_bits(1)]
        for _ in range(1 << DIGIT_BITS):
            digit.append(_product(digit[-1], base))
        base = digit.pop()
        found.append(digit)
    return found


POWERS = _powers()


@lru_cache(maxsize=64)
def _power(count: int) -> int:
    """Returns x^(8 count)."""
    found, digit = POWERS[0][count & 15], 1
    while count := count >> DIGIT_BITS:
        if count & 15:
            found = _product(found, POWERS[digit][count & 15])
        digit += 1
    return found

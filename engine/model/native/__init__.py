"""Decoder layers in compiled code, for CPUs with AVX-512 VNNI and BF16 instructions."""

"""Midline's inference engine: token ids in, token ids out. It knows no editor and no URI.

Importing this package, and every module marked *light* in its docstring, does not import torch.
"""

__version__ = "0.5.0"

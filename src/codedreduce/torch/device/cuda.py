"""The few functions of CUDA's runtime that PyTorch does not offer: memory by reference, and pages that stay in place.

The library is the one that PyTorch has loaded.
"""

from __future__ import annotations

import ctypes
import errno
from functools import cache
from typing import Any

import torch

#: Bytes of what names a piece of device memory to other processes.
HANDLE = 64

_LAZY_PEER_ACCESS = 1


class _Handle(ctypes.Structure):
    _fields_ = [("reserved", ctypes.c_char * HANDLE)]


class CudaError(OSError):
    """CUDA could not do it."""


@cache
def _runtime() -> ctypes.CDLL:
    torch.cuda.init()  # type: ignore[no-untyped-call]
    with open("/proc/self/maps") as maps:
        for line in maps:
            if "libcudart" in line:
                library = ctypes.CDLL(line.split()[-1])
                library.cudaIpcOpenMemHandle.argtypes = [ctypes.c_void_p, _Handle, ctypes.c_uint]
                library.cudaGetErrorString.restype = ctypes.c_char_p
                return library
    raise CudaError(errno.ENOSYS, "CUDA's runtime is not there")


def _call(name: str, *arguments: Any) -> None:
    code = getattr(_runtime(), name)(*arguments)
    if code:
        _runtime().cudaGetLastError()  # or PyTorch would take it for its own
        raise CudaError(errno.ENOMEM, f"{name}: {_runtime().cudaGetErrorString(code).decode()}")


def allocate(size: int, device: torch.device) -> int:
    """Memory of its own, which can be named to others; its address."""
    pointer = ctypes.c_void_p()
    with torch.cuda.device(device):
        _call("cudaMalloc", ctypes.byref(pointer), ctypes.c_size_t(size))
    assert pointer.value is not None
    return pointer.value


def free(address: int) -> None:
    """Let go of memory that was allocated here."""
    _call("cudaFree", ctypes.c_void_p(address))


def handle_of(address: int) -> bytes:
    """What other processes need to open memory that was allocated here."""
    handle = _Handle()
    _call("cudaIpcGetMemHandle", ctypes.byref(handle), ctypes.c_void_p(address))
    return ctypes.string_at(ctypes.byref(handle), HANDLE)


def open_handle(handle: bytes, device: torch.device) -> int:
    """Where another process's memory is seen from here."""
    found, pointer = _Handle(), ctypes.c_void_p()
    ctypes.memmove(ctypes.byref(found), handle, HANDLE)
    with torch.cuda.device(device):
        _call("cudaIpcOpenMemHandle", ctypes.byref(pointer), found, ctypes.c_uint(_LAZY_PEER_ACCESS))
    assert pointer.value is not None
    return pointer.value


def close_handle(address: int) -> None:
    """Let go of another process's memory."""
    _call("cudaIpcCloseMemHandle", ctypes.c_void_p(address))


def keep_in_place(address: int, size: int) -> None:
    """Have host memory that copies to and from a device need not go around."""
    _call("cudaHostRegister", ctypes.c_void_p(address), ctypes.c_size_t(size), ctypes.c_uint(0))


def let_move(address: int) -> None:
    """The end of that."""
    _call("cudaHostUnregister", ctypes.c_void_p(address))


class _Raw:
    """Device memory as PyTorch takes it in."""

    def __init__(self, address: int, count: int, typestr: str) -> None:
        self.__cuda_array_interface__ = {"shape": (count,), "typestr": typestr, "data": (address, False), "version": 3}


def tensor_at(address: int, count: int, typestr: str, device: torch.device) -> torch.Tensor:
    """The numbers that lie there; nothing is copied, and who has it must see to it that it stays."""
    return torch.as_tensor(_Raw(address, count, typestr), device=device)

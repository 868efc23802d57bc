"""Functions of CUDA's runtime that PyTorch does not offer: shared memory handles, and pinned host memory.

They come from the library that PyTorch has loaded.
"""

from __future__ import annotations

import ctypes
import errno
from functools import cache
from typing import Any

import torch

#: Bytes of a handle, by which other processes open device memory.
HANDLE = 64

_LAZY_PEER_ACCESS = 1


class _Handle(ctypes.Structure):
    _fields_ = [("reserved", ctypes.c_char * HANDLE)]


class CudaError(OSError):
    """A call to CUDA's runtime failed."""


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
    raise CudaError(errno.ENOSYS, "PyTorch has not loaded CUDA's runtime (libcudart)")


def _call(name: str, *arguments: Any) -> None:
    code = getattr(_runtime(), name)(*arguments)
    if code:
        _runtime().cudaGetLastError()  # clears the error, or PyTorch would report it as its own
        raise CudaError(errno.ENOMEM, f"{name}: {_runtime().cudaGetErrorString(code).decode()}")


def _address(name: str, device: torch.device, *arguments: Any) -> int:
    """The address that a call on a device writes to its first argument."""
    pointer = ctypes.c_void_p()
    with torch.cuda.device(device):
        _call(name, ctypes.byref(pointer), *arguments)
    assert pointer.value is not None
    return pointer.value


def allocate(size: int, device: torch.device) -> int:
    """Allocate memory that other processes can open; return its address."""
    return _address("cudaMalloc", device, ctypes.c_size_t(size))


def free(address: int) -> None:
    """Free memory that this process allocated."""
    _call("cudaFree", ctypes.c_void_p(address))


def handle_of(address: int) -> bytes:
    """Return the handle by which other processes open memory that this process allocated."""
    handle = _Handle()
    _call("cudaIpcGetMemHandle", ctypes.byref(handle), ctypes.c_void_p(address))
    return ctypes.string_at(ctypes.byref(handle), HANDLE)


def open_handle(handle: bytes, device: torch.device) -> int:
    """Open another process's memory; return its address in this process."""
    return _address("cudaIpcOpenMemHandle", device, _Handle.from_buffer_copy(handle), ctypes.c_uint(_LAZY_PEER_ACCESS))


def close_handle(address: int) -> None:
    """Close another process's memory."""
    _call("cudaIpcCloseMemHandle", ctypes.c_void_p(address))


def keep_in_place(address: int, size: int) -> None:
    """Pin host memory, so that copies to and from a device are direct."""
    _call("cudaHostRegister", ctypes.c_void_p(address), ctypes.c_size_t(size), ctypes.c_uint(0))


def let_move(address: int) -> None:
    """Unpin host memory."""
    _call("cudaHostUnregister", ctypes.c_void_p(address))


class _Raw:
    """Device memory with the interface that PyTorch imports."""

    def __init__(self, address: int, count: int, typestr: str) -> None:
        self.__cuda_array_interface__ = {"shape": (count,), "typestr": typestr, "data": (address, False), "version": 3}


def tensor_at(address: int, count: int, typestr: str, device: torch.device) -> torch.Tensor:
    """Return the numbers at an address, without a copy; the caller must keep the memory allocated."""
    return torch.as_tensor(_Raw(address, count, typestr), device=device)

"""A GPU that is not there, at PyTorch's own CUDA dispatch key: real numbers, computed on the CPU."""

from anydevice.virtual.machine import disable, enable, enabled

__all__ = ["disable", "enable", "enabled"]

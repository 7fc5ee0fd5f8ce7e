"""Devices written in Python, between ``device.Device`` and the hooks of ``python/core/devices.h``."""
